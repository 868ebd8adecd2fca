"""A GPU whose memory is the host's and on which everything is done at once, for the parts that drive one."""

import ctypes
import math
import time

import numpy as np
from benchmarks import gpu, ours
from benchmarks.arrays import TYPESTR


class HostDriver:
    """The driver's calls that the benchmark makes on memory."""

    def __init__(self):
        self.allocated = {}

    def cuMemAlloc(self, nbytes):
        buffer = np.empty(nbytes + 64, np.uint8)
        address = -(-buffer.ctypes.data // 64) * 64
        self.allocated[address] = buffer
        return 0, address

    def cuMemFree(self, address):
        del self.allocated[address]
        return (0,)

    def cuMemcpyHtoD(self, target, source, nbytes):
        ctypes.memmove(target, source, nbytes)
        return (0,)

    cuMemcpyDtoD = cuMemcpyDtoH = cuMemcpyHtoD

    def cuMemcpyDtoDAsync(self, target, source, nbytes, _stream):
        return self.cuMemcpyHtoD(target, source, nbytes)

    def cuMemsetD8(self, address, byte, nbytes):
        ctypes.memset(address, byte, nbytes)
        return (0,)

    def cuMemGetInfo(self):
        return 0, 8 << 30, 8 << 30

    def cuCtxSynchronize(self):
        return (0,)

    def cuStreamSynchronize(self, _stream):
        return (0,)


class HostGraph:
    """A graph that calls what was captured, but for the call that captured it."""

    def __init__(self, enqueue):
        self.enqueue, self.launches = enqueue, 0

    def launch(self):
        self.enqueue()
        self.launches += 1

    def free(self):
        pass


class HostGpu(gpu.Gpu):
    """Its ordinal is what the library calls the CPU."""

    def __init__(self, l2_bytes=1 << 16):
        self.ordinal, self.handle, self.stream = "cpu", None, None
        self.l2_bytes, self.multiprocessors, self.capability = l2_bytes, 2, (9, 0)

    def capture(self, enqueue):
        return HostGraph(enqueue)

    def times_ms(self, launch, repeats):
        taken = []
        for _ in range(repeats):
            begun = time.perf_counter()
            launch()
            taken.append(1000 * (time.perf_counter() - begun))
        return taken


class HostOurs(ours.Ours):
    """The library's step on the CPU, whatever device is asked for."""

    def __init__(self, case, sets, device, exact=False):
        super().__init__(case, sets, "cpu", exact)


def as_numpy(array):
    """The memory of a DeviceArray."""
    memory = (ctypes.c_char * array.nbytes).from_address(array.address)
    return np.frombuffer(memory, TYPESTR[array.dtype], math.prod(array.shape)).reshape(array.shape)
