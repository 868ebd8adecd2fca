"""The entries of tests/python/test_cases.py that are about GPU arrays of some framework, named like them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import qpi_distill as qpi

SMOKE_GRAD, SMOKE_KL = [[0.575210383, 0, -0.575210383]], 1.150420765
Q = np.array([[[0, -40], [0, 0], [0, 40]]], np.float32)
PI = np.array([[1, 0, -1]], np.float32)
PAIR = np.array([-1, 1], np.float32)


class Torch:
    def __init__(self):
        self.xp = pytest.importorskip("torch")

    def put(self, x):
        return self.xp.tensor(x, device="cuda")

    def get(self, x):
        return x.detach().cpu().numpy()


class CuPy:
    def __init__(self):
        self.xp = pytest.importorskip("cupy")

    def put(self, x):
        return self.xp.asarray(x)

    def get(self, x):
        return self.xp.asnumpy(x)


class Numba:
    def __init__(self):
        self.xp = pytest.importorskip("numba.cuda")

    def put(self, x):
        return self.xp.to_device(x)

    def get(self, x):
        return x.copy_to_host()


FRAMEWORKS = {"torch": Torch, "cupy": CuPy, "numba": Numba}


@pytest.fixture(params=list(FRAMEWORKS))
def framework(request, gpu):
    return FRAMEWORKS[request.param]()


def operator(**state):
    isv = qpi.ISV(**{"lam": 1.0, "device": "cuda:0", **state})
    return isv, qpi.Distiller(support=PAIR, actions=3, isv=isv, reduction="sum", value_scale="none")


def numba_stream(framework):
    """Numba's default stream has no number of its own to give; a made one has."""
    return framework.xp.stream() if isinstance(framework, Numba) else None


def test_smoke(framework):
    isv, op = operator()
    q, pi, grad = (framework.put(x) for x in (Q, PI, 0 * PI))
    stream = numba_stream(framework)
    op.step(q, pi, grad, stream=stream)
    if stream is not None:
        stream.synchronize()
    assert_allclose(isv.read(stream=stream).kl_ema, SMOKE_KL, atol=2e-6)
    assert_allclose(framework.get(grad), SMOKE_GRAD, atol=2e-6)


def test_jax_inputs(gpu):
    jax = pytest.importorskip("jax")
    if not any(d.platform == "gpu" for d in jax.devices()):
        pytest.skip("JAX has no GPU here")
    isv, op = operator()
    q, pi = jax.device_put(Q), jax.device_put(PI)
    grad = gpu.put(0 * PI)
    op.step(q, pi, grad, stream=gpu.stream)
    assert_allclose(gpu.get(grad), SMOKE_GRAD, atol=2e-6)
    assert_allclose(isv.read(stream=gpu.stream).kl_ema, SMOKE_KL, atol=2e-6)
    with pytest.raises((BufferError, TypeError, ValueError), match="pi_grad"):
        op.step(q, pi, jax.device_put(0 * PI), stream=gpu.stream)


class Fake:
    """Nothing but an array interface."""

    def __init__(self, shape, data, owner=None, **fields):
        self.owner = owner
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": data, "version": 3, **fields}


def test_a_i1_no_rows(framework):
    isv, op = operator(kl_ema=0.3)
    stream = numba_stream(framework)
    try:
        empty = [framework.put(np.zeros(shape, np.float32)) for shape in ((0, 3, 2), (0, 3), (0, 3))]
    except Exception as error:
        pytest.skip(f"this framework makes no empty arrays: {error}")
    op.step(*empty, stream=stream)
    q, pi, grad = (framework.put(x) for x in (Q, PI, 0 * PI))
    op.step(q, pi, grad, stream=stream)
    if stream is not None:
        stream.synchronize()
    assert isv.read(stream=stream).observations == 1
    assert_allclose(framework.get(grad), SMOKE_GRAD, atol=2e-6)


@pytest.mark.parametrize("data", [(0, False), (None, False)])
def test_a_i1_no_rows_and_no_pointer(gpu, data):
    isv, op = operator()
    op.step(Fake((0, 3, 2), data), Fake((0, 3), data), Fake((0, 3), data), stream=gpu.stream)
    assert isv.read(stream=gpu.stream).observations == 0
    grad = gpu.put(0 * PI)
    op.step(gpu.put(Q), gpu.put(PI), grad, stream=gpu.stream)
    assert_allclose(gpu.get(grad), SMOKE_GRAD, atol=2e-6)


@pytest.mark.parametrize("data", [(0, False), (None, False)])
def test_a_i1_rows_and_no_pointer(gpu, data):
    _, op = operator()
    q, pi, grad = (gpu.put(x) for x in (Q.repeat(2, 0), PI.repeat(2, 0), 0 * PI.repeat(2, 0)))
    for arrays in (
        (q, Fake((2, 3), data), grad),
        (q, pi, Fake((2, 3), data)),
        (Fake((2, 3, 2), data), pi, grad),
    ):
        with pytest.raises((BufferError, ValueError, TypeError)):
            op.step(*arrays, stream=gpu.stream)
    assert not gpu.get(grad).any()


def test_a_i1_tensors_without_data(gpu):
    torch = pytest.importorskip("torch")
    _, op = operator()
    meta = torch.empty(2, 3, device="meta")
    with pytest.raises((BufferError, ValueError, TypeError), match="pi_logits"):
        op.step(torch.zeros(2, 3, 2, device="cuda"), meta, torch.zeros(2, 3, device="cuda"))


def test_a_i2_expanded_output(gpu):
    torch = pytest.importorskip("torch")
    _, op = operator()
    q, pi = torch.tensor(Q, device="cuda").repeat(4, 1, 1), torch.tensor(PI, device="cuda").repeat(4, 1)
    room = torch.zeros(1, 3, device="cuda")
    for out in (room.expand(4, 3), pi, torch.zeros(6, device="cuda").as_strided((4, 3), (1, 1))):
        before = out.clone()
        with pytest.raises((BufferError, ValueError), match="pi_grad"):
            op.step(q, pi, out)
        torch.cuda.synchronize()
        assert torch.equal(out, before)
    shifted = torch.zeros(15, device="cuda")
    shifted[:12] = pi.flatten()
    with pytest.raises((BufferError, ValueError), match="pi_grad"):
        op.step(q, shifted[:12].view(4, 3), shifted[3:].view(4, 3))


def test_a_i2_state_under_the_output(gpu):
    torch = pytest.importorskip("torch")
    bus = torch.zeros(600, device="cuda")
    bus[[486, 487, 491, 493]] = torch.tensor([1, 1, 0.05, 0.05], device="cuda")
    before = bus.clone()
    isv = qpi.ISV.from_buffer(bus, layout="bus", stream=torch.cuda.current_stream())
    op = qpi.Distiller(support=PAIR, actions=3, isv=isv, reduction="sum", value_scale="none")
    q, pi = torch.tensor(Q, device="cuda").repeat(4, 1, 1), torch.tensor(PI, device="cuda").repeat(4, 1)
    with pytest.raises((BufferError, ValueError), match="pi_grad"):
        op.step(q, pi, bus[480:492].view(4, 3))
    assert torch.equal(bus, before)


def test_a_i2_support_of_one_element(gpu):
    torch = pytest.importorskip("torch")
    isv = qpi.ISV(lam=1.0, device="cuda:0")
    support = torch.tensor([1.5], device="cuda").expand(2)
    q, pi, grad = (
        torch.randn(1, 3, 2, device="cuda"),
        torch.zeros(1, 3, device="cuda"),
        torch.zeros(1, 3, device="cuda"),
    )
    try:
        op = qpi.Distiller(support=support, actions=3, isv=isv, reduction="sum", value_scale="none")
    except (ValueError, BufferError):
        return
    op.step(q, pi, grad)
    assert_allclose(grad.cpu().numpy(), 0, atol=1e-7)


def test_a_i3_transposed_tensors(gpu):
    torch = pytest.importorskip("torch")
    isv, op = operator()
    square = torch.tensor([[0.0, 1, 2], [3, 5, 7], [-1, 4, 0]], device="cuda")
    pi = square.t().contiguous().t()
    grad = torch.zeros(3, 3, device="cuda").t()
    op.step(torch.tensor(Q, device="cuda").repeat(3, 1, 1), pi, grad)
    want = [[0, 0, 0], [-0.074154333, -0.127418043, 0.201572376], [-0.083457310, 0.730830284, -0.647372974]]
    assert_allclose(grad.cpu().numpy(), want, atol=2e-6)
    assert_allclose(isv.read().kl_ema, 0.821193760, atol=2e-6)


def test_a_i4_read_only_arrays(gpu):
    _, op = operator()
    q, pi, grad = (gpu.put(x) for x in (Q, PI, 0 * PI))

    def locked(pointer, shape):
        return Fake(shape, (pointer.address, True), owner=pointer)

    op.step(locked(q, (1, 3, 2)), locked(pi, (1, 3)), grad, stream=gpu.stream)
    assert_allclose(gpu.get(grad), SMOKE_GRAD, atol=2e-6)
    with pytest.raises(BufferError, match="pi_grad"):
        op.step(q, pi, locked(grad, (1, 3)), stream=gpu.stream)
    bus = gpu.put(np.zeros(494, np.float32))
    with pytest.raises(BufferError):
        qpi.ISV.from_buffer(locked(bus, (494,)), layout="bus", stream=gpu.stream)
    assert_allclose(gpu.get(grad), SMOKE_GRAD, atol=2e-6)


def test_masked_and_mistyped_interfaces(gpu):
    _, op = operator()
    q, pi, grad = (gpu.put(x) for x in (Q, PI, 0 * PI))
    with pytest.raises(BufferError, match="pi_logits"):
        op.step(
            q, Fake((1, 3), (pi.address, False), pi, mask=Fake((1, 3), (pi.address, False))), grad, stream=gpu.stream
        )
    for typestr in ("<f8", ">f4", "<i4", "<V2", "|b1"):
        with pytest.raises(TypeError, match="pi_logits"):
            op.step(q, Fake((1, 3), (pi.address, False), pi, typestr=typestr), grad, stream=gpu.stream)
    assert not gpu.get(grad).any()


def test_a_i5_bfloat16_tensors(gpu):
    torch = pytest.importorskip("torch")
    isv, op = operator()
    pi = torch.tensor([[0.5, 1, 3]], dtype=torch.bfloat16, device="cuda")
    grad = torch.zeros(1, 3, device="cuda")
    op.step(torch.zeros(1, 3, 2, device="cuda"), pi, grad)
    assert_allclose(grad.cpu().numpy(), [[-0.265907975, -0.222167711, 0.488075686]], atol=1e-5)
    assert_allclose(isv.read().kl_ema, 0.598121808, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64", "float64", "int32"])
@pytest.mark.parametrize("argument", [0, 1, 2])
def test_a_i5_unsupported_dtypes(gpu, dtype, argument):
    torch = pytest.importorskip("torch")
    _, op = operator()
    arrays = [torch.tensor(x, device="cuda") for x in (Q, PI, 0 * PI)]
    arrays[argument] = arrays[argument].to(getattr(torch, dtype))
    with pytest.raises(TypeError, match=("q_logits", "pi_logits", "pi_grad")[argument]) as caught:
        op.step(*arrays)
    assert dtype in str(caught.value)


def test_a_i6_autograd_flags_survive(gpu):
    torch = pytest.importorskip("torch")
    _, op = operator()
    pi = torch.nn.Parameter(torch.tensor(PI, device="cuda"))
    q = torch.tensor(Q, device="cuda", requires_grad=True) * 1
    pi.grad = torch.zeros_like(pi)
    op.step(q, pi, pi.grad)
    assert_allclose(pi.grad.cpu().numpy(), SMOKE_GRAD, atol=2e-6)
    assert pi.requires_grad
    assert pi.is_leaf
    assert q.requires_grad
    assert q.grad_fn is not None
    out = torch.zeros(1, 3, device="cuda", requires_grad=True)
    with pytest.raises((BufferError, ValueError, TypeError), match="pi_grad"):
        op.step(q, pi, out)
    assert not out.detach().any()


def test_the_state_is_an_array_of_other_frameworks(framework):
    """What isv.slots exports can be read by others without a copy."""
    isv, _ = operator(lam=0.75)
    if isinstance(framework, Numba):
        view = framework.xp.as_cuda_array(isv.slots)
        assert view.copy_to_host().view(np.float32)[0] == np.float32(0.75)
    elif isinstance(framework, CuPy):
        assert float(framework.xp.asarray(isv.slots).view("float32")[0]) == 0.75
    else:
        assert float(framework.xp.as_tensor(isv.slots, device="cuda").view(framework.xp.float32)[0]) == 0.75
