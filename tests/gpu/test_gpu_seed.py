"""The shipped fatbin: the seed's kernels by name, under the seed's launch shape and under others."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import qpi_distill as qpi
from reference import seed_distill_grad, seed_lambda_controller
from reference.seed import KL_EMA, LAM, TAU
from stepping import assert_same_bits

GOLDEN = np.load(Path(__file__).parent.parent / "data" / "seed_kernels.npz")
CASES = sorted({name.split("/")[0] for name in GOLDEN.files})
SHAPES = [
    ("the seed's", None, 11),
    ("one block", 1, 11),
    ("one thread", None, 1),
    ("one thread in all", 1, 1),
    ("few threads", 3, 5),
    ("a warp", None, 32),
    ("a large block", 2, 256),
    ("more blocks than rows", 500, 64),
    ("two dimensions", (2, 3), (4, 3)),
    ("three dimensions", (2, 2, 2), (2, 3, 2)),
]


@pytest.fixture(scope="module")
def kernels():
    from cuda.core import Device, ObjectCode

    Device(0).set_current()
    code = ObjectCode.from_fatbin(Path(qpi.get_seed_fatbin()).read_bytes())
    return code.get_kernel("rl_q_pi_distill_grad"), code.get_kernel("rl_q_distill_lambda_controller")


def close(got, want, support, tau, lam=1.0):
    got, want = np.float64(got), np.float64(want)
    assert_array_equal(np.isnan(got), np.isnan(want))
    near = 4 * np.spacing(np.float32(np.abs(support).max())) / max(float(tau), 1e-3)
    bound = 2e-6 * np.maximum(1, np.abs(want)) + lam * np.minimum(near, 1)
    assert np.all((np.abs(got - want) <= bound) | np.isnan(want))


def launch(gpu, kernels, q, pi, support, isv, grad, grid, block, shared=0):
    from cuda.core import LaunchConfig
    from cuda.core import launch as core_launch

    places = [gpu.put(x) for x in (q, pi, support, isv, grad)]
    addresses = [p.address for p in places]
    config = LaunchConfig(grid=grid or max(len(q), 1), block=block, shmem_size=shared)
    core_launch(gpu.stream, config, kernels[0], *addresses, np.int32(len(q)))
    middle = gpu.get(places[3]).copy()
    core_launch(gpu.stream, LaunchConfig(grid=grid or 1, block=block), kernels[1], addresses[3])
    return gpu.get(places[4]), middle, gpu.get(places[3])


@pytest.mark.parametrize(("name", "grid", "block"), SHAPES, ids=[s[0] for s in SHAPES])
@pytest.mark.parametrize("case", CASES)
def test_recorded_cases(gpu, kernels, case, name, grid, block):
    data = {k: GOLDEN[f"{case}/{k}"].copy() for k in ("q", "pi", "sup", "isv", "g", "g_out", "isv_grad", "isv_ctrl")}
    inputs = (data["q"], data["pi"], data["sup"], data["isv"], data["g"])
    grad, middle, after = launch(gpu, kernels, *inputs, grid, block)
    tau, lam = data["isv"][TAU], float(data["isv"][LAM])
    close(grad, data["g_out"], data["sup"], tau, lam)
    close(middle[KL_EMA], data["isv_grad"][KL_EMA], data["sup"], tau)
    others = np.arange(len(middle)) != KL_EMA
    assert_same_bits(middle[others], data["isv_grad"][others])
    assert_same_bits(after, seed_lambda_controller(middle))


@pytest.mark.parametrize(("name", "grid", "block"), SHAPES, ids=[s[0] for s in SHAPES])
def test_launch_shapes_do_not_change_a_bit(gpu, kernels, name, grid, block):
    rng = np.random.default_rng(0)
    q, pi = rng.normal(size=(37, 11, 21)).astype(np.float32), rng.normal(size=(37, 11)).astype(np.float32)
    pi[5, 3], q[6, 2, 1] = -np.inf, np.nan
    isv = np.zeros(512, np.float32)
    isv[[486, 487, 488, 491, 493]] = 0.3, 0.7, 0.2, 0.05, 0.1
    support = np.linspace(-10, 10, 21, dtype=np.float32)
    inputs = (q, pi, support, isv, np.zeros_like(pi))
    grad, middle, after = launch(gpu, kernels, *inputs, grid, block)
    want = launch(gpu, kernels, *inputs, None, 11)
    nan = np.isnan(want[0])
    assert_array_equal(np.isnan(grad), nan)
    assert_same_bits(grad[~nan], want[0][~nan])
    assert_same_bits(middle, want[1])
    assert_same_bits(after, want[2])
    model, bus = seed_distill_grad(*inputs, np.float32)
    close(grad, model, support, 0.7, 0.3)
    close(middle[KL_EMA], bus[KL_EMA], support, 0.7)


def test_fatbin_and_c_entry_point_agree(gpu, kernels):
    rng = np.random.default_rng(1)
    q, pi = rng.normal(size=(100, 11, 21)).astype(np.float32), rng.normal(size=(100, 11)).astype(np.float32)
    isv = np.zeros(494, np.float32)
    isv[[486, 487, 488, 491, 493]] = 0.3, 0.7, 0.2, 0.05, 0.1
    support = np.linspace(-10, 10, 21, dtype=np.float32)
    want, middle, after = launch(gpu, kernels, q, pi, support, isv, np.zeros_like(pi), None, 11)
    place, grad = gpu.put(isv), gpu.put(np.zeros_like(pi))
    qpi.seed_distill_grad(gpu.put(q), gpu.put(pi), gpu.put(support), place, grad, stream=gpu.stream)
    assert_same_bits(gpu.get(grad), want)
    assert_same_bits(gpu.get(place), middle)
    qpi.seed_lambda_controller(place, stream=gpu.stream)
    assert_same_bits(gpu.get(place), after)


@pytest.mark.huge
def test_index_products_do_not_wrap(gpu, kernels):
    """Row 9 296 466 is the first whose logits begin beyond 2^31."""
    from cuda.core import LaunchConfig
    from cuda.core import launch as core_launch
    from test_gpu_scale import free_memory, zeros

    from backends import Memory

    rows = 9_296_470
    if free_memory() < rows * 253 * 4 + (1 << 30):
        pytest.skip("needs 11 GB of GPU memory")
    q, pi, grad = (zeros(Memory(rows * n * 4, 0)) for n in (231, 11, 11))
    forty = np.array([40], np.float32)
    q.write((9_296_466 * 231 + 20) * 4, forty.ctypes.data, 4)
    support = np.zeros(21, np.float32)
    support[20] = 1
    isv = np.zeros(494, np.float32)
    isv[[486, 487, 491, 493]] = 1, 1, 0.05, 0.05
    config = LaunchConfig(grid=rows, block=11)
    places = gpu.put(support), gpu.put(isv)
    core_launch(
        gpu.stream,
        config,
        kernels[0],
        q.address,
        pi.address,
        places[0].address,
        places[1].address,
        grad.address,
        np.int32(rows),
    )
    gpu.sync()
    got = np.frombuffer(grad.read(9_296_466 * 44, 44), np.float32)
    np.testing.assert_allclose(got, [-0.114927908] + 10 * [0.011492791], atol=2e-6)
