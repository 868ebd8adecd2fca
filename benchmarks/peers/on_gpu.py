"""The peers as they run on the GPU: each on the arrays of the case, all of them with the same few methods."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np

from ..arrays import DeviceArray, InputSet, support_of
from ..cases import Case
from ..gpu import Gpu, Memory
from ..native import Native
from ..results import Unavailable
from . import STATE

BUS_WORDS = 494
BUS = {"lam": 486, "tau": 487, "kl_ema": 488, "kl_target": 491, "kl_alpha": 493}


class State(NamedTuple):
    """What the loop moves."""

    lam: float = STATE["lam"]
    kl_ema: float = 0.0
    observations: int | None = 0  # None: the peer does not count


class Peer:
    """A peer on a case.

    Parameters
    ----------
    gpu : Gpu
        Where.
    case : Case
        What is measured.
    sets : list of InputSet
        DeviceArrays.
    """

    slowness = 1.5  # about how many times longer than the bytes take
    sums = False  # the gradient is of the sum over the rows, not of their mean
    first_row_alone = False  # the statistic is the KL of row 0

    def __init__(self, gpu: Gpu, case: Case, sets: list[InputSet]):
        self.gpu, self.case, self.sets = gpu, case, sets

    def step(self, number: int) -> None:
        """Enqueue one step on a set."""
        raise NotImplementedError

    def put(self, state: State) -> None:
        """Set the state, when everything before is done."""
        raise NotImplementedError

    def get(self) -> State:
        """Read the state, when everything before is done."""
        raise NotImplementedError

    def steps(self, count: int) -> None:
        """Enqueue this many steps, each on the next set."""
        for i in range(count):
            self.step(i % len(self.sets))

    @contextmanager
    def graph(self, steps: int) -> Iterator[Callable[[], None]]:
        """A graph of this many steps, as the function that launches it."""
        graph = self.gpu.capture(lambda: self.steps(steps))
        try:
            yield graph.launch
        finally:
            self.gpu.synchronize()
            graph.free()

    def close(self) -> None:
        """Give back what was taken."""


class Seed(Peer):
    """The two kernels that the library grew from."""

    sums = True
    first_row_alone = True

    def __init__(self, gpu: Gpu, case: Case, sets: list[InputSet], native: Native):
        super().__init__(gpu, case, sets)
        self.native = native
        words = support_of(case)
        self.support, self.bus = Memory(words.nbytes), Memory(4 * BUS_WORDS)
        self.support.put(words)
        self.put(State())

    def step(self, number: int) -> None:
        one = self.sets[number]
        self.native.seed_step(
            one.q.address,
            one.pi.address,
            self.support.address,
            self.bus.address,
            one.grad.address,
            self.case.rows,
            self.gpu.handle,
        )

    def put(self, state: State) -> None:
        self.gpu.synchronize()
        words = np.zeros(BUS_WORDS, np.float32)
        for name, value in {**STATE, "lam": state.lam, "kl_ema": state.kl_ema}.items():
            words[BUS[name]] = value
        self.bus.put(words)

    def get(self) -> State:
        words = self.gpu.fetch(DeviceArray(self.bus.address, (BUS_WORDS,), "float32", self.gpu.ordinal))
        return State(float(words[BUS["lam"]]), float(words[BUS["kl_ema"]]), None)

    def close(self) -> None:
        self.gpu.synchronize()
        self.support.free()
        self.bus.free()


class Torch(Peer):
    """PyTorch in eager execution."""

    slowness = 10

    def __init__(self, gpu: Gpu, case: Case, sets: list[InputSet]):
        super().__init__(gpu, case, sets)
        if importlib.util.find_spec("torch") is None:
            raise Unavailable("torch is not installed")
        import torch

        if not torch.cuda.is_available():
            raise Unavailable("torch sees no GPU")
        from . import torch_step

        self.torch, self.device = torch, f"cuda:{gpu.ordinal}"
        self.stream = torch.cuda.ExternalStream(gpu.handle, device=self.device)
        self.held = ExitStack()
        self.state = torch_step.State(self.device).tensors
        self.support = torch.tensor(support_of(case), device=self.device)
        self.tensors = [one.through(self.tensor) for one in sets]
        try:
            self.call = self.make()
            self.steps(3)  # compiles, and fills the allocator's cache
            gpu.synchronize()
        except BaseException:
            self.close()
            raise

    def make(self) -> Callable[..., None]:
        """The step as a function of tensors."""
        from . import torch_step

        return torch_step.step

    def tensor(self, array: DeviceArray):
        tensor = self.torch.as_tensor(array, device=self.device)
        return tensor.view(self.torch.bfloat16) if array.dtype == "bfloat16" else tensor

    @contextmanager
    def current(self) -> Iterator[None]:
        torch = self.torch
        with torch.no_grad(), torch.cuda.device(self.gpu.ordinal), torch.cuda.stream(self.stream):
            yield

    def step(self, number: int) -> None:
        one = self.tensors[number]
        self.call(one.q, one.pi, self.support, one.grad, *self.state)

    def steps(self, count: int) -> None:
        with self.current():
            super().steps(count)

    def put(self, state: State) -> None:
        self.gpu.synchronize()
        for tensor, value in zip(self.state, state, strict=True):
            tensor.fill_(value)
        self.gpu.synchronize()

    def get(self) -> State:
        self.gpu.synchronize()
        return State(*(tensor.item() for tensor in self.state))

    @contextmanager
    def graph(self, steps: int) -> Iterator[Callable[[], None]]:
        graph = self.torch.cuda.CUDAGraph()
        try:
            with (
                self.current(),
                self.torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"),
            ):
                Peer.steps(self, steps)

            def launch() -> None:
                with self.torch.cuda.stream(self.stream):
                    graph.replay()

            yield launch
        finally:
            self.gpu.synchronize()
            graph.reset()

    def close(self) -> None:
        self.gpu.synchronize()
        self.tensors = []
        self.held.close()
        self.torch.cuda.empty_cache()


class Compiled(Torch):
    """torch.compile, anew for each case."""

    slowness = 4

    def make(self) -> Callable[..., None]:
        from . import torch_step

        return self.held.enter_context(torch_step.compiled())


class Triton(Torch):
    """The kernels written for this comparison, with the tuning that is fastest on the case."""

    slowness = 2

    def make(self) -> Callable[..., None]:
        if importlib.util.find_spec("triton") is None:
            raise Unavailable("Triton is not installed")
        from .triton_step import TUNINGS, Step

        case, gpu = self.case, self.gpu
        overlap = gpu.capability >= (9, 0)
        taken: dict[Step, float] = {}
        failed: list[str] = []
        for tuning in TUNINGS:
            self.call = Step(case.rows, case.actions, case.atoms, self.device, tuning, gpu.multiprocessors, overlap)
            try:
                taken[self.call] = self.glance_ms()
            except Exception as error:  # a tuning that this GPU or this version cannot run
                failed.append(f"{tuning}: {type(error).__name__}: {error}")
        if not taken:
            raise RuntimeError(f"no tuning runs; {failed[0]}")
        return min(taken, key=taken.get)

    def glance_ms(self) -> float:
        """A quick look at how long the sets take."""
        self.steps(len(self.sets))
        self.gpu.synchronize()
        with self.graph(40 if self.case.hot else len(self.sets)) as launch:
            self.gpu.times_ms(launch, 1)
            return min(self.gpu.times_ms(launch, 4))

    graph = Peer.graph  # nothing is allocated in a step


class CuPy(Peer):
    """CuPy's fused elementwise kernels."""

    slowness = 4

    def __init__(self, gpu: Gpu, case: Case, sets: list[InputSet]):
        super().__init__(gpu, case, sets)
        if importlib.util.find_spec("cupy") is None:
            raise Unavailable("CuPy is not installed")
        import cupy

        from .cupy_step import Step

        self.cupy = cupy
        self.stream = cupy.cuda.Stream.from_external(gpu)
        with self.current():
            self.call = Step(case.rows, case.actions, case.atoms)
            self.support = cupy.asarray(support_of(case))
            self.arrays = [one.through(cupy.asarray) for one in sets]
            self.state = (cupy.zeros(1, cupy.float32), cupy.zeros(1, cupy.float32), cupy.zeros(1, cupy.int32))
        self.put(State())
        self.steps(3)  # compiles, and fills the allocator's cache
        gpu.synchronize()

    @contextmanager
    def current(self) -> Iterator[None]:
        with self.cupy.cuda.Device(self.gpu.ordinal), self.stream:
            yield

    def step(self, number: int) -> None:
        one = self.arrays[number]
        self.call(one.q, one.pi, self.support, one.grad, *self.state)

    def steps(self, count: int) -> None:
        with self.current():
            super().steps(count)

    def put(self, state: State) -> None:
        self.gpu.synchronize()
        with self.current():
            for array, value in zip(self.state, state, strict=True):
                array.fill(value)
        self.gpu.synchronize()

    def get(self) -> State:
        self.gpu.synchronize()
        with self.current():
            return State(*(array.item() for array in self.state))

    def close(self) -> None:
        self.gpu.synchronize()
        self.call = self.arrays = self.state = None
        self.cupy.get_default_memory_pool().free_all_blocks()
