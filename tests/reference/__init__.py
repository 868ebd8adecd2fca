"""A float64 NumPy statement of what the library computes. It shares no code with it.

``rows``       one batch of rows: target, policy, KL, what is skipped and what is clipped
``loop``       everything around them: gradient, record, moving averages, control law, faults
``laws``       every control law of lam and tau
``seed``       the two kernels the library grew from, in the precision asked for
``tolerance``  how far float32 arithmetic may be from all this
``family``     every critic, target, divergence and statistic, as functions without state
"""

from .laws import LAM_LAWS, TAU_LAWS, Laws
from .loop import Fault, Loop, Options, Reason, Record, ramp
from .rows import Rows, evaluate
from .seed import seed_distill_grad, seed_lambda_controller

__all__ = [
    "LAM_LAWS",
    "TAU_LAWS",
    "Fault",
    "Laws",
    "Loop",
    "Options",
    "Reason",
    "Record",
    "Rows",
    "evaluate",
    "ramp",
    "seed_distill_grad",
    "seed_lambda_controller",
]
