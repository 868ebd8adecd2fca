"""Peers beside the library's step on the GPU, each checked against float64 before it is timed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from .arrays import InputSet, period_set
from .cases import COMPILED_CASES, GPU_CASES, Case
from .gpu import Gpu
from .native import Native
from .peers import STATE
from .peers.on_gpu import Compiled, CuPy, Peer, Seed, State, Torch, Triton
from .reference import evaluate, law
from .results import Recorder, case_fields
from .step import device_sets, estimate_us, ours_time
from .timing import Timing, copy_tb_s, graph_time, steps_per_graph

# How far a gradient may be from float64, as a share of its scale lambda / B.
GRADIENT_TOLERANCE = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 1.6e-2}
STATE_TOLERANCE = 1e-4
CHECK_FROM = State(kl_ema=0.5, observations=1)  # so that the moving average has something to move from
CHECK_STEPS = 2
BUDGET_MS = 60


def check(gpu: Gpu, case: Case, peer: Peer, one: InputSet) -> None:
    """Raise where two steps of a peer on its first set are not those of the float64 reference."""
    reference = evaluate(case, period_set(case))
    kl = reference.kl[0] if peer.first_row_alone else reference.mean_kl(case.rows)
    lam, kl_ema = CHECK_FROM.lam, CHECK_FROM.kl_ema
    pull = 0.0
    for _ in range(CHECK_STEPS):
        pull += lam
        kl_ema += STATE["kl_alpha"] * (kl - kl_ema)
        lam = law(lam, kl_ema)
    scale = pull if peer.sums else pull / case.rows

    gpu.set_bytes(one.grad, 0)
    peer.put(CHECK_FROM)
    for _ in range(CHECK_STEPS):
        peer.steps(1)
    error = reference.gradient_error(gpu.fetch(one.grad), case.grad_dtype, scale) / scale
    seen = peer.get()
    if not error <= GRADIENT_TOLERANCE[case.grad_dtype]:
        raise RuntimeError(f"its gradient is {error:.1e} of the scale away from float64: not recorded")
    for name, got, want in (("lambda", seen.lam, lam), ("the moving average", seen.kl_ema, kl_ema)):
        if not abs(got - want) <= STATE_TOLERANCE * abs(want):
            raise RuntimeError(f"{name} is {got:.6g}, expected {want:.6g}: not recorded")


def peer_time(gpu: Gpu, case: Case, peer: Peer, copy_rate: float) -> Timing:
    """A peer's step, from replays of a graph that is seen to make its steps."""
    steps = steps_per_graph(peer.slowness * estimate_us(case, copy_rate), len(peer.sets))
    peer.put(State())
    launches = 0
    with peer.graph(steps) as launch:

        def counted() -> None:
            nonlocal launches
            launches += 1
            launch()

        timing = graph_time(gpu, counted, steps, BUDGET_MS)
        seen = peer.get().observations
    if seen is not None and seen != launches * steps:
        raise RuntimeError(f"{launches * steps} steps were timed, its state has seen {seen}")
    return timing


def run(recorder: Recorder, gpu: Gpu, work: Path, seeds: Path | None, compiled: bool) -> None:
    """Measure the cases.

    Parameters
    ----------
    recorder : Recorder
        Takes the ratios.
    gpu : Gpu
        Where.
    work, seeds : Path
        Where native code is built, and the folder with the seed kernels.
    compiled : bool
        torch.compile alone, which is slow; else all the other peers.
    """
    copy_rate = recorder.attempt("copy bandwidth", copy_tb_s, gpu)
    if copy_rate is None:
        return
    native = None
    if not compiled:
        if seeds is None:
            recorder.note("no folder with the seed kernels was given (--seeds): they are not timed")
        else:
            native = recorder.attempt("compiling the seed kernels", Native, work, gpu.capability, seeds)

    makers: dict[str, Callable[..., Peer]] = {"triton": Triton, "cupy": CuPy, "torch_eager": Torch}
    if native is not None:
        makers = {"seed": functools.partial(Seed, native=native), **makers}
    if compiled:
        makers = {"torch_compile": Compiled}

    def measure_peer(name: str, case: Case, sets: list[InputSet]) -> Timing:
        peer = makers[name](gpu, case, sets)
        try:
            check(gpu, case, peer, sets[0])
            return peer_time(gpu, case, peer, copy_rate)
        finally:
            peer.close()

    def measure(case: Case) -> None:
        with device_sets(gpu, case) as sets:
            us = ours_time(gpu, case, sets, copy_rate)[0].us
            for name in makers:
                if name in case.peers:
                    taken = recorder.attempt(f"{name}, {case.name}", measure_peer, name, case, sets)
                    if taken is not None:
                        recorder.put(step=[{**case_fields(case), "vs": {name: round(taken.us / us, 3)}}])

    for case in COMPILED_CASES if compiled else GPU_CASES:
        if set(makers) & set(case.peers):
            recorder.attempt(case.name, measure, case)
