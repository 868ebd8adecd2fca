"""The library's own step on a case, for every part of the benchmark."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

import qpi_distill as qpi

from .arrays import DeviceArray, InputSet, period_set, support_of
from .cases import DIVERGENCES, EPSILON, Case
from .peers import STATE
from .reference import evaluate


class Ours:
    """An operator on a state of its own, and the sets bound to it.

    Parameters
    ----------
    case : Case
        What is measured.
    sets : list of InputSet
        DeviceArrays, or NumPy arrays on the CPU.
    device : str
        "cpu" or "cuda:<ordinal>".
    exact : bool
        Whether the gradient is what the accuracy is measured by: at lambda 1, not divided by the rows, written over.
    """

    def __init__(self, case: Case, sets: list[InputSet], device: str, exact: bool = False):
        self.isv = qpi.ISV(**(STATE | {"lam": 1.0} if exact else STATE), device=device)
        self.operator = qpi.Distiller(
            support=None if "quantile" in case.options else support_of(case),
            actions=case.actions,
            atoms=case.atoms,
            isv=self.isv,
            reduction="sum" if exact else "mean",
            mode="write" if exact else "add",
            value_scale="running_std" if "running_std" in case.options else "none",
            q_dtype=case.q_dtype,
            pi_dtype=case.pi_dtype,
            grad_dtype=case.grad_dtype,
            critic="quantile" if "quantile" in case.options else "categorical",
            target="greedy" if "greedy" in case.options else "boltzmann",
            epsilon=EPSILON if "greedy" in case.options else 0.0,
            divergence=next((name for name in DIVERGENCES if name in case.options), "forward_kl"),
            summary="summary" in case.options,
        )
        sets = [one.through(as_argument) for one in sets]
        self.bound = [self.operator.bind(one.q, one.pi, one.grad, **one.keywords) for one in sets]
        self.kernel = kernel_name(self.operator.explain(case.rows))

    def steps(self, count: int, *stream: int) -> None:
        """This many steps, each on the next set."""
        bound = self.bound
        for i in range(count):
            bound[i % len(bound)].step(*stream)

    def expect(self, observations: int, *stream: int) -> None:
        """Check that exactly this many steps have been made and that none found a fault."""
        seen = self.isv.read(*stream).observations
        if seen != observations:
            raise RuntimeError(f"{observations} steps were timed, the state has seen {seen}")


def as_argument(array):
    """An array as the library takes it."""
    if isinstance(array, DeviceArray):
        return qpi.pointer(array.address, array.shape, array.dtype, device=array.ordinal, owner=array)
    return array


def kernel_name(explanation: str) -> str:
    """The kernel in what `Distiller.explain` says."""
    match = re.search(r"(\w+) kernel|^CPU, ([^,]+)", explanation)
    return (match[1] or match[2]) if match else explanation[:40]


def largest_error(case: Case, one: InputSet, device: str, fetch: Callable[[], np.ndarray], *stream: int) -> dict:
    """The field "error" of a row: the largest distance of the gradient, and that of the batch KL, from float64.

    Parameters
    ----------
    case : Case
        What is measured.
    one : InputSet
        Its arrays. The gradient is overwritten.
    device : str
        As for `Ours`.
    fetch : callable
        Gives the gradient when the step is done; bfloat16 as uint16.
    stream : int
        On a GPU, where the step runs.
    """
    exact = Ours(case, [one], device, exact=True)
    exact.steps(1, *stream)
    kl = exact.isv.read(*stream).kl_last
    reference = evaluate(case, period_set(case))
    grad = reference.gradient_error(fetch(), case.grad_dtype)
    return {"grad": float(f"{grad:.3g}"), "kl": float(f"{abs(kl - reference.mean_kl(case.rows)):.3g}")}
