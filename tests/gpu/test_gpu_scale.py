"""Sizes beyond 32 bits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import qpi_distill as qpi
from backends import Memory
from stepping import make_isv

ACTIONS, ATOMS = 11, 21


def free_memory() -> int:
    from cuda.bindings import driver
    from cuda_driver import call

    return int(call(driver.cuMemGetInfo)[0])


def zeros(memory):
    from cuda.bindings import driver
    from cuda_driver import call

    call(driver.cuMemsetD8, memory.address, 0, memory.nbytes)
    return memory


@pytest.mark.huge
@pytest.mark.parametrize("kernel", ["auto", "stream", "tile"])
def test_a_l1_more_elements_than_32_bits_can_count(gpu, kernel):
    rows = 9_300_000
    need = rows * (ACTIONS * ATOMS + 2 * ACTIONS) * 4
    if free_memory() < need + (1 << 30):
        pytest.skip(f"needs {need / 1e9:.1f} GB of GPU memory")
    q = zeros(Memory(rows * ACTIONS * ATOMS * 4, 0))
    pi, grad = zeros(Memory(rows * ACTIONS * 4, 0)), zeros(Memory(rows * ACTIONS * 4, 0))
    marked = [0, 9_296_465, 9_296_466, rows - 1]
    forty = np.array([40], np.float32)
    for row in marked:
        q.write((row * ACTIONS * ATOMS + 20) * 4, forty.ctypes.data, 4)
    support = np.zeros(ATOMS, np.float32)
    support[20] = 1
    isv = make_isv(gpu, {"lam": 1})
    op = qpi.Distiller(
        support=support, actions=ACTIONS, isv=isv, reduction="sum", value_scale="none", kernel=kernel, checked=True
    )
    op.step(
        qpi.pointer(q.address, (rows, ACTIONS, ATOMS), device=0, owner=q),
        qpi.pointer(pi.address, (rows, ACTIONS), device=0, owner=pi),
        qpi.pointer(grad.address, (rows, ACTIONS), device=0, owner=grad),
        stream=gpu.stream,
    )
    values = isv.read(stream=gpu.stream)
    assert values.rows_last == rows
    assert_allclose(values.kl_last, 4 * 0.060878869 / rows, rtol=1e-4)
    want = np.array([-0.114927908] + 10 * [0.011492791])
    for row in marked:
        got = np.frombuffer(grad.read(row * ACTIONS * 4, ACTIONS * 4), np.float32)
        assert_allclose(got, want, atol=2e-6)
    step = 1_000_000
    seen = 0
    for first in range(0, rows, step):
        part = np.frombuffer(grad.read(first * ACTIONS * 4, min(step, rows - first) * ACTIONS * 4), np.float32)
        seen += int((np.abs(part.reshape(-1, ACTIONS)) > 1e-6).any(-1).sum())
    assert seen == len(marked)


@pytest.mark.parametrize("kernel", ["auto", "stream"])
def test_a_l1_more_rows_than_32_bits_can_count(gpu, kernel):
    """Broadcast inputs need no memory: 2^32 + 1 rows must not look like one."""
    rows = 2**32 + 1
    isv = make_isv(gpu)
    op = qpi.Distiller(support=[0, 1], actions=1, isv=isv, reduction="sum", value_scale="none", kernel=kernel)
    q, pi = gpu.put(np.zeros((1, 1, 2), np.float32)), gpu.put(np.zeros((1, 1), np.float32))
    seen = op.measure(
        qpi.pointer(q.address, (rows, 1, 2), device=0, strides=(0, 2, 1), owner=q),
        qpi.pointer(pi.address, (rows, 1), device=0, strides=(0, 1), owner=pi),
        stream=gpu.stream,
    )
    assert seen.rows == rows
    assert seen.weight == rows
    assert seen.kl == 0


def test_a_l1_sizes_beyond_the_limits(gpu):
    isv = make_isv(gpu)
    op = qpi.Distiller(support=[0, 1], actions=3, isv=isv, reduction="sum", value_scale="none")
    for rows, error in ((2**40, OverflowError), (2**63, OverflowError), (-1, (ValueError, OverflowError))):
        with pytest.raises(error):
            op.step(*(qpi.pointer(4096, (rows, *rest), device=0) for rest in ((3, 2), (3,), (3,))), stream=gpu.stream)
    assert isv.read(stream=gpu.stream).observations == 0
