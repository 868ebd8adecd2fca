"""The library's own step on a case, for every part of the benchmark."""

from __future__ import annotations

import re

import qpi_distill as qpi

from .arrays import DeviceArray, InputSet, support_of
from .cases import Case
from .peers import STATE


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
    """

    def __init__(self, case: Case, sets: list[InputSet], device: str):
        self.isv = qpi.ISV(**STATE, device=device)
        self.operator = qpi.Distiller(
            support=support_of(case),
            actions=case.actions,
            atoms=case.atoms,
            isv=self.isv,
            reduction="mean",
            value_scale="running_std" if "running_std" in case.options else "none",
            q_dtype=case.q_dtype,
            pi_dtype=case.pi_dtype,
            grad_dtype=case.grad_dtype,
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
