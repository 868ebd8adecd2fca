"""The whole family in float64: what a critic says, what becomes of it, how far the policy is, what a batch reports.

``simplex``      softmax over the legal actions, and sums in which 0 · log 0 is 0
``critics``      raw critic outputs → action values [..., A]: means, risk measures, ensembles, normalisation
``targets``      action values → log of the target policy [..., A]
``divergences``  log target and policy logits → loss per row, and its gradient to the logits
``summary``      log target and log policy → the statistics of a batch

Actions are the last axis, everything before it is rows. ``legal`` is a mask [..., A], None for "all of them": what is
illegal has probability 0 and is not looked at. A scalar argument may as well be an array with one entry per row.
Targets and policies go by their logarithms: a probability of e^-1000 is 0 in any float, its logarithm is not.
"""

from . import critics, divergences, simplex, summary, targets

__all__ = ["critics", "divergences", "simplex", "summary", "targets"]
