"""Whole steps on the CPU: the library's and its peers', on the few cores that the process is kept to."""

from __future__ import annotations

import importlib.util
import os
from contextlib import nullcontext

import numpy as np

import qpi_distill as qpi

from .arrays import InputSet, host_sets, period_set, support_of
from .cases import CPU_CASES, Case
from .cores import cpu_model
from .ours import Ours, largest_error
from .peers import numpy_step
from .reference import evaluate
from .results import Recorder, Unavailable, case_fields
from .timing import Timing, wall_time

CACHE_BYTES = 64 << 20
GRADIENT_TOLERANCE = 1e-4  # of a peer's first gradient, as a share of its scale lambda / B


def ours_time(case: Case, sets: list[InputSet]) -> tuple[Timing, str]:
    """The library's step, and the instruction set that it uses."""
    ours = Ours(case, sets, "cpu")
    timing = wall_time(lambda: ours.steps(len(sets)), len(sets))
    ours.isv.read()  # raises on a fault
    return timing, ours.kernel


def checked(case: Case, one: InputSet, step) -> None:
    """Raise where a peer's first step is not that of the float64 reference."""
    one.grad[...] = 0
    step()
    scale = numpy_step.State().lam / case.rows
    error = evaluate(case, period_set(case)).gradient_error(one.grad, "float32", scale) / scale
    if not error <= GRADIENT_TOLERANCE:
        raise RuntimeError(f"its gradient is {error:.1e} of the scale away from float64: not recorded")


def numpy_time(case: Case, sets: list[InputSet]) -> Timing:
    support, state = support_of(case), numpy_step.State()

    def step(one: InputSet) -> None:
        numpy_step.step(one.q, one.pi, support, one.grad, state)

    def all_sets() -> None:
        for one in sets:
            step(one)

    checked(case, sets[0], lambda: step(sets[0]))
    return wall_time(all_sets, len(sets))


def torch_time(case: Case, sets: list[InputSet], compiled: bool) -> Timing:
    if importlib.util.find_spec("torch") is None:
        raise Unavailable("torch is not installed")
    import torch

    from .peers import torch_step

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    state = torch_step.State("cpu").tensors
    support = torch.from_numpy(np.ascontiguousarray(support_of(case)))
    tensors = [one.through(torch.from_numpy) for one in sets]
    with torch.no_grad(), torch_step.compiled() if compiled else nullcontext(torch_step.step) as call:

        def step(one: InputSet) -> None:
            call(one.q, one.pi, support, one.grad, *state)

        def all_sets() -> None:
            for one in tensors:
                step(one)

        checked(case, sets[0], lambda: step(tensors[0]))
        return wall_time(all_sets, len(sets))


def run(recorder: Recorder, compiled: bool) -> None:
    """Measure the cases; with `compiled`, the library beside torch.compile alone, which is slow and comes last."""
    peers = {"torch_compile": lambda case, sets: torch_time(case, sets, compiled=True)}
    if not compiled:
        peers = {"numpy": numpy_time, "torch_eager": lambda case, sets: torch_time(case, sets, compiled=False)}
        isa = qpi.info()["cpu"]["kernels"][-1]
        recorder.put(cpu={"model": cpu_model(), "isa": isa, "cores": len(os.sched_getaffinity(0))})

    def measure(case: Case) -> None:
        sets = host_sets(case, CACHE_BYTES)
        timing, kernel = ours_time(case, sets)
        if not compiled:
            row = {
                **case_fields(case),
                "kernel": kernel,
                "us": round(timing.us, 2),
                "spread": round(timing.spread, 4),
                "fraction_of_copy": None,
                "vs": {},
            }
            recorder.put(step=[row])
            error = recorder.attempt(f"error, {case.name}", largest_error, case, sets[0], "cpu", lambda: sets[0].grad)
            if error is not None:
                recorder.put(step=[{**case_fields(case), "error": error}])
        for peer, measure_peer in peers.items():
            if peer in case.peers:
                taken = recorder.attempt(f"{peer}, {case.name}", measure_peer, case, sets)
                if taken is not None:
                    recorder.put(step=[{**case_fields(case), "vs": {peer: round(taken.us / timing.us, 3)}}])

    for case in CPU_CASES:
        recorder.attempt(case.name, measure, case)
