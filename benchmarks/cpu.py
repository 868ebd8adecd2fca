"""Whole steps on the CPU: the library's and its peers', on the cores that this process may use."""

from __future__ import annotations

import importlib.util
import os

import numpy as np

from .arrays import InputSet, host_sets, support_of
from .cases import CPU_CASES, Case
from .ours import Ours
from .peers import numpy_step
from .results import Recorder, Unavailable, case_fields
from .timing import wall_us

CACHE_BYTES = 64 << 20


def ours_us(case: Case, sets: list[InputSet]) -> tuple[float, str]:
    """Microseconds of the library's step, and the instruction set that it uses."""
    ours = Ours(case, sets, "cpu")
    us = wall_us(lambda: ours.steps(len(sets)), len(sets))
    ours.isv.read()  # raises on a fault
    return us, ours.kernel


def numpy_us(case: Case, sets: list[InputSet]) -> float:
    support, state = support_of(case), numpy_step.State()

    def all_sets() -> None:
        for one in sets:
            numpy_step.step(one.q, one.pi, support, one.grad, state)

    return wall_us(all_sets, len(sets))


def torch_us(case: Case, sets: list[InputSet], compiled: bool) -> float:
    if importlib.util.find_spec("torch") is None:
        raise Unavailable("torch is not installed")
    import torch

    from .peers import torch_step

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    step = torch_step.compiled() if compiled else torch_step.step
    state = torch_step.State("cpu").tensors
    support = torch.from_numpy(np.ascontiguousarray(support_of(case)))
    tensors = [one.through(torch.from_numpy) for one in sets]

    def all_sets() -> None:
        for one in tensors:
            step(one.q, one.pi, support, one.grad, *state)

    with torch.no_grad():
        return wall_us(all_sets, len(sets))


def run(recorder: Recorder, compiled: bool) -> None:
    """Measure the cases; with `compiled`, the library beside torch.compile alone, which is slow and comes last."""
    peers = {"torch_compile": lambda case, sets: torch_us(case, sets, compiled=True)}
    if not compiled:
        peers = {"numpy": numpy_us, "torch_eager": lambda case, sets: torch_us(case, sets, compiled=False)}
        recorder.put(cpu_cores=len(os.sched_getaffinity(0)))

    def measure(case: Case) -> None:
        sets = host_sets(case, CACHE_BYTES)
        us, kernel = ours_us(case, sets)
        if not compiled:
            row = {**case_fields(case), "kernel": kernel, "us": round(us, 2), "fraction_of_copy": None}
            recorder.put(step=[{**row, "vs": {}}])
        for peer, measure_peer in peers.items():
            if peer in case.peers:
                taken = recorder.attempt(f"{peer}, {case.name}", measure_peer, case, sets)
                if taken is not None:
                    recorder.put(step=[{**case_fields(case), "vs": {peer: round(taken / us, 3)}}])

    for case in CPU_CASES:
        recorder.attempt(case.name, measure, case)
