"""Control laws against a plant, in seconds: choose and tune a law before spending GPU days on it.

The plant is a table of policies that two teachers pull at: a policy gradient with advantages of its own, and
distillation toward softmax(Q / tau). The laws are the library's own, run through an `ISV`; only the plant is a model. A
law that fails here will fail elsewhere; one that holds here has shown no more than that.

Needs NumPy alone; the picture needs the extra: ``pip install "qpi-distill[plot]"``.
"""

from .plant import Plant
from .run import Arm, Outcome, simulate
from .studies import STUDIES, Study, arm

__all__ = ["STUDIES", "Arm", "Outcome", "Plant", "Study", "arm", "simulate"]
