"""Where a rank's arrays live: on a GPU with its stream and graphs, or in NumPy's memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import qpi_distill as qpi


class Host:
    """The CPU. What a graph would replay is called."""

    device = "cpu"
    ordinal = -1
    stream: tuple[int, ...] = ()

    def put(self, array: np.ndarray):
        return array.copy()

    def tile(self, block: np.ndarray, rows: int):
        """A block repeated along its first axis up to so many rows."""
        return np.resize(block, (rows, *block.shape[1:]))

    def get(self, array) -> np.ndarray:
        return array

    def words(self, *shape: int):
        """Memory that an exchange can fill, and the same as a tensor."""
        import torch

        array = np.zeros(shape, np.int64)
        return array, torch.from_numpy(array)

    def view(self, address: int, count: int):
        return np.asarray(qpi.pointer(address, (count,), "int64", device="cpu"))

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        return enqueue

    def times_us(self, launch: Callable[[], None], repeats: int) -> list[float]:
        taken = []
        for _ in range(repeats):
            begun = time.perf_counter()
            launch()
            taken.append(1e6 * (time.perf_counter() - begun))
        return taken

    def settle(self) -> None:
        pass


class Card:
    """A GPU, one stream on it, and torch on that stream."""

    def __init__(self, ordinal: int):
        import torch

        from ..gpu import Gpu

        torch.cuda.set_device(ordinal)
        self.gpu = Gpu(ordinal)
        self.ordinal, self.device = ordinal, f"cuda:{ordinal}"
        self.stream = (self.gpu.handle,)
        self._torch = torch

    def put(self, array: np.ndarray):
        return self.tile(array, len(array))

    def tile(self, block: np.ndarray, rows: int):
        """A block repeated along its first axis up to so many rows."""
        from ..gpu import Memory

        block = np.ascontiguousarray(block)
        shape = (rows, *block.shape[1:])
        memory = Memory(int(np.prod(shape)) * block.itemsize)
        if block.size:
            memory.fill(block)
        return qpi.pointer(memory.address, shape, block.dtype.name, device=self.ordinal, owner=_Freed(memory))

    def get(self, array) -> np.ndarray:
        self.settle()
        return self._torch.as_tensor(array, device=self.device).cpu().numpy()

    def words(self, *shape: int):
        """Memory that an exchange can fill, and the same as a tensor."""
        tensor = self._torch.zeros(shape, dtype=self._torch.int64, device=self.device)
        self._torch.cuda.synchronize(self.ordinal)
        return qpi.pointer(tensor.data_ptr(), shape, "int64", device=self.ordinal, owner=tensor), tensor

    def view(self, address: int, count: int):
        return qpi.pointer(address, (count,), "int64", device=self.ordinal)

    def capture(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """A graph's launch. `enqueue` has run before, so that everything is loaded."""
        self.settle()
        return self.gpu.capture(enqueue).launch

    def times_us(self, launch: Callable[[], None], repeats: int) -> list[float]:
        return [1000 * taken for taken in self.gpu.times_ms(launch, repeats)]

    def settle(self) -> None:
        self.gpu.synchronize()


class _Freed:
    """Frees memory with the last array on it."""

    def __init__(self, memory):
        self.memory = memory

    def __del__(self):
        self.memory.free()


def place_of(device: str, rank: int) -> Host | Card:
    """The CPU, or the GPU with the rank's number."""
    return Host() if device == "cpu" else Card(rank)
