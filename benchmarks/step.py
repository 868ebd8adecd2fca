"""Whole steps on the GPU, inside CUDA graphs: the library's and its peers'."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from .arrays import DeviceArray, InputSet, random_block, set_count, support_of
from .cases import GPU_CASES, ITEM_BYTES, Case
from .gpu import Gpu, Memory
from .native import Native
from .ours import Ours
from .peers import STATE
from .results import Recorder, Unavailable, case_fields
from .timing import copy_tb_s, graph_us, steps_per_graph

SPARE_BYTES = 1 << 30
BUS_WORDS = 494
BUS = {486: STATE["lam"], 487: STATE["tau"], 491: STATE["kl_target"], 493: STATE["kl_alpha"]}


@contextmanager
def device_sets(gpu: Gpu, case: Case) -> Iterator[list[InputSet]]:
    """The sets of a case in device memory, filled; freed at the end."""
    count = set_count(case, gpu.l2_bytes)
    free = gpu.free_bytes() - SPARE_BYTES
    if count * case.bytes > free and case.bytes > 4 * gpu.l2_bytes:
        count = 1
    if count * case.bytes > free:
        raise Unavailable(f"{case.name}: needs {count * case.bytes / 1e9:.1f} GB of device memory")
    memory: list[Memory] = []

    def make(kind: str, dtype: str, *shape: int) -> DeviceArray:
        memory.append(Memory(math.prod(shape) * ITEM_BYTES.get(dtype, 1)))
        memory[-1].fill(random_block(kind))
        return DeviceArray(memory[-1].address, shape, dtype, gpu.ordinal)

    def make_set() -> InputSet:
        rows = case.rows, case.actions
        return InputSet(
            q=make(case.q_dtype, case.q_dtype, *rows, case.atoms),
            pi=make(case.pi_dtype, case.pi_dtype, *rows),
            grad=make(case.grad_dtype, case.grad_dtype, *rows),
            legal=make("mask", "uint8", *rows) if "mask" in case.options else None,
            weights=make("weights", "float32", case.rows) if "weights" in case.options else None,
        )

    try:
        sets = [make_set() for _ in range(count)]
        gpu.synchronize()
        yield sets
    finally:
        gpu.synchronize()
        for piece in memory:
            piece.free()


def estimate_us(case: Case, copy_rate: float) -> float:
    """Roughly what a step takes: the launch floor and the bytes."""
    return 4 + case.bytes / (copy_rate * 1e6)


def ours_us(gpu: Gpu, case: Case, sets: list[InputSet], copy_rate: float) -> tuple[float, str]:
    """Microseconds of the library's step, and the kernel that it chose."""
    ours = Ours(case, sets, f"cuda:{gpu.ordinal}")
    ours.steps(1, gpu.handle)
    gpu.synchronize()
    steps = steps_per_graph(estimate_us(case, copy_rate), len(sets))
    graph = gpu.capture(lambda: ours.steps(steps, gpu.handle))
    us = graph_us(gpu, graph.launch, steps)
    ours.expect(1 + steps * graph.launches, gpu.handle)
    graph.free()
    return us, ours.kernel


def seed_us(gpu: Gpu, case: Case, sets: list[InputSet], copy_rate: float, native: Native) -> float:
    """Microseconds of the two seed kernels."""
    bus_words = np.zeros(BUS_WORDS, np.float32)
    bus_words[list(BUS)] = list(BUS.values())
    support_words = support_of(case)
    bus, support = Memory(bus_words.nbytes), Memory(support_words.nbytes)
    try:
        bus.put(bus_words)
        support.put(support_words)
        gpu.synchronize()

        def enqueue(count: int) -> None:
            for i in range(count):
                one = sets[i % len(sets)]
                native.seed_step(
                    one.q.address, one.pi.address, support.address, bus.address, one.grad.address, case.rows, gpu.handle
                )

        enqueue(1)
        gpu.synchronize()
        steps = steps_per_graph(1.5 * estimate_us(case, copy_rate), len(sets))
        graph = gpu.capture(lambda: enqueue(steps))
        us = graph_us(gpu, graph.launch, steps)
        graph.free()
        return us
    finally:
        gpu.synchronize()
        bus.free()
        support.free()


def torch_us(gpu: Gpu, case: Case, sets: list[InputSet], copy_rate: float, compiled: bool) -> float:
    """Microseconds of the step in PyTorch, on the same arrays."""
    if importlib.util.find_spec("torch") is None:
        raise Unavailable("torch is not installed")
    import torch

    if not torch.cuda.is_available():
        raise Unavailable("torch sees no GPU")
    from .peers import torch_step

    device = f"cuda:{gpu.ordinal}"
    stream = torch.cuda.ExternalStream(gpu.handle, device=device)
    step = torch_step.compiled() if compiled else torch_step.step
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.no_grad(), torch.cuda.device(gpu.ordinal), torch.cuda.stream(stream):
            support = torch.tensor(support_of(case), device=device)
            state = torch_step.State(device).tensors
            tensors = [one.through(lambda array: torch.as_tensor(array, device=device)) for one in sets]

            def enqueue(count: int) -> None:
                for i in range(count):
                    one = tensors[i % len(tensors)]
                    step(one.q, one.pi, support, one.grad, *state)

            enqueue(3)
            torch.cuda.synchronize()
            steps = steps_per_graph((4 if compiled else 10) * estimate_us(case, copy_rate), len(sets))
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                enqueue(steps)
            us = graph_us(gpu, graph.replay, steps)
            torch.cuda.synchronize()
            seen = int(state[2])
            if seen < 3 + steps:
                raise RuntimeError(f"the graph of torch has made {seen - 3} steps of {steps}")
            return us
    finally:
        graph.reset()
        torch.cuda.empty_cache()


def run(recorder: Recorder, gpu: Gpu, work: Path, seeds: Path | None, compiled: bool) -> None:
    """Measure the cases.

    Parameters
    ----------
    recorder : Recorder
        Takes the rows.
    gpu : Gpu
        Where.
    work, seeds : Path
        Where native code is built, and the folder with the seed kernels.
    compiled : bool
        Only the cases that torch.compile runs too, and no other peer: compiling is slow and comes last.
    """
    copy_rate = recorder.attempt("copy bandwidth", copy_tb_s, gpu)
    if copy_rate is None:
        return
    if not compiled:
        recorder.put(copy_tb_s=round(copy_rate, 4))
    peers = ("torch_compile",) if compiled else ("seed", "torch_eager")
    native = None
    if not compiled:
        if seeds is None:
            recorder.note("no folder with the seed kernels was given (--seeds): they are not timed")
        else:
            native = recorder.attempt("compiling the seed kernels", Native, work, gpu.capability, seeds)

    def measure(case: Case) -> None:
        with device_sets(gpu, case) as sets:
            us, kernel = ours_us(gpu, case, sets, copy_rate)
            if not compiled:
                fraction = round(case.bytes / (us * copy_rate * 1e6), 4)
                row = {**case_fields(case), "kernel": kernel, "us": round(us, 3), "fraction_of_copy": fraction}
                recorder.put(step=[{**row, "vs": {}}])
            for peer in peers:
                if peer not in case.peers or (peer == "seed" and native is None):
                    continue
                if peer == "seed":
                    taken = recorder.attempt(f"seed kernels, {case.name}", seed_us, gpu, case, sets, copy_rate, native)
                else:
                    taken = recorder.attempt(
                        f"{peer}, {case.name}", torch_us, gpu, case, sets, copy_rate, peer == "torch_compile"
                    )
                if taken is not None:
                    recorder.put(step=[{**case_fields(case), "vs": {peer: round(taken / us, 3)}}])

    for case in GPU_CASES:
        if not compiled or "torch_compile" in case.peers:
            recorder.attempt(case.name, measure, case)
