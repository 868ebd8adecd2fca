"""Array protocols: every corner of each of them, with producers that are made for it."""

from __future__ import annotations

import gc
import sys
import threading

import hypothesis
import hypothesis.strategies as st
import numpy as np
import producers as fake
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from producers import SMOKE_GRAD, SMOKE_KL, CudaArray, DLPack, exchange_class, smoke

import qpi_distill as qpi
from qpi_distill import _arrays
from qpi_distill._arrays import describe

ml_dtypes = pytest.importorskip("ml_dtypes")


def element_strides(array):
    return tuple(step // array.itemsize for step in array.strides)


# ---- NumPy and the buffer protocol ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "float64", "int8", "int32", "int64", "uint8", "uint32", "bool", ml_dtypes.bfloat16]
)
def test_numpy_dtypes(dtype):
    array = np.zeros((2, 3), dtype)
    got = describe(array)
    assert got.dtype == array.dtype.name
    assert (got.shape, got.address, got.device, got.readonly) == ((2, 3), fake.address(array), "cpu", False)


@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16])
@hypothesis.given(data=st.data())
def test_numpy_views_are_read_as_they_are(dtype, data):
    """Shape, strides and first element of any view are NumPy's own."""
    array = np.zeros(data.draw(st.lists(st.integers(0, 4), max_size=4).map(tuple)), dtype)
    slices = []
    for n in array.shape:
        start, stop = data.draw(st.integers(0, n)), data.draw(st.integers(0, n))
        slices.append(slice(start, stop, data.draw(st.sampled_from([1, 2, -1, -2]))))
    view = array[(*slices, ...)].transpose(data.draw(st.permutations(range(array.ndim))))
    view.flags.writeable = data.draw(st.booleans())
    got = describe(view)
    assert got.shape == view.shape
    assert got.readonly == (not view.flags.writeable)
    if view.size:
        assert got.address == fake.address(view)
        for n, mine, numpys in zip(view.shape, got.strides, element_strides(view), strict=True):
            assert n == 1 or mine == numpys
    assert got.packed == view.flags.c_contiguous


def test_zero_dimensions():
    assert describe(np.array(1.5, np.float32)).shape == ()


@pytest.mark.parametrize("dtype", [">f4", ">f2", ">i4", ">f8"])
def test_byte_swapped(dtype):
    with pytest.raises(TypeError, match=r"pi_logits.*byte"):
        describe(np.zeros(3, dtype), "pi_logits")


@pytest.mark.parametrize("dtype", ["O", "S3", "U2", "M8[s]", "f4,i4", ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_dtypes_that_are_none_of_ours(dtype):
    with pytest.raises(TypeError, match="support"):
        describe(np.zeros(3, dtype), "support")


def test_strides_that_are_no_multiple_of_the_item():
    raw = np.zeros(40, np.uint8)
    view = np.ndarray((3,), np.float32, raw, 0, (5,))
    with pytest.raises(ValueError, match="5 bytes"):
        describe(view)
    assert describe(np.ndarray((1,), np.float32, raw, 0, (5,))).shape == (1,)


def test_masked_arrays():
    with pytest.raises(BufferError, match=r"pi_logits.*mask"):
        describe(np.ma.masked_array(np.zeros(3, np.float32), [0, 1, 0]), "pi_logits")


def test_subclasses_of_ndarray():
    class Mine(np.ndarray):
        pass

    array = np.zeros((2, 3), ml_dtypes.bfloat16).view(Mine)
    assert describe(array).dtype == "bfloat16"


def test_other_exporters_of_buffers():
    assert describe(bytearray(8)).dtype == "uint8"
    assert describe(b"12345678").readonly
    got = describe(memoryview(np.zeros((4, 6), np.float32)[::2, ::3]))
    assert (got.shape, got.strides, got.dtype) == ((2, 2), (12, 3), "float32")


def test_a_buffer_cannot_be_resized_while_it_is_used():
    memory = bytearray(64)
    got = describe(memory)
    with pytest.raises(BufferError):
        memory.extend(b"x")
    del got
    memory.extend(b"x")


@pytest.mark.parametrize("junk", [None, 1.5, "text", [1.0, 2.0], object(), {"shape": (3,)}])
def test_what_is_no_array(junk):
    with pytest.raises(TypeError, match="q_logits"):
        describe(junk, "q_logits")


def test_too_many_dimensions():
    assert describe(np.zeros((1,) * 16, np.float32)).ndim == 16
    with pytest.raises(ValueError, match="17 dimensions"):
        describe(np.zeros((1,) * 17, np.float32))


# ---- __cuda_array_interface__ ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_cuda_array_interface(version):
    array = np.zeros((4, 6), np.float32)[:, ::2]
    got = describe(CudaArray(array, version=version))
    assert (got.shape, got.strides, got.dtype, got.device) == ((4, 3), (6, 2), "float32", "cuda")
    assert got.stream is None


@pytest.mark.parametrize("version", [0, 1])
def test_cuda_array_interface_of_the_distant_past(version):
    with pytest.raises(TypeError, match=f"version {version}"):
        describe(CudaArray(np.zeros(3, np.float32), version=version))


@pytest.mark.parametrize("strides", [None, KeyError])
def test_cuda_array_interface_without_strides(strides):
    got = describe(CudaArray(np.zeros((2, 3, 4), np.float16), strides=strides))
    assert got.strides == (12, 4, 1)


def test_cuda_array_interface_needs_a_stride_for_each_dimension():
    with pytest.raises(ValueError, match="strides"):
        describe(CudaArray(np.zeros((2, 3), np.float32), strides=(4,)))


@pytest.mark.parametrize("field", ["shape", "typestr", "data", "version"])
def test_cuda_array_interface_with_a_field_missing(field):
    with pytest.raises(TypeError, match="q_logits"):
        describe(CudaArray(np.zeros(3, np.float32), **{field: KeyError}), "q_logits")


def test_cuda_array_interface_that_is_no_dict():
    array = CudaArray(np.zeros(3, np.float32))
    array.__cuda_array_interface__ = [1]
    with pytest.raises(TypeError, match="expected dict"):
        describe(array)


def test_cuda_array_interface_with_a_mask():
    with pytest.raises(BufferError, match=r"row_weights.*mask"):
        describe(CudaArray(np.zeros(3, np.float32), mask=CudaArray(np.zeros(3, bool))), "row_weights")


@pytest.mark.parametrize(("stream", "want"), [(KeyError, None), (None, None), (1, 1), (2, 2), (0xBEEF, 0xBEEF)])
def test_stream_field(stream, want):
    assert describe(CudaArray(np.zeros(3, np.float32), stream=stream)).stream == want


def test_stream_field_zero():
    with pytest.raises(ValueError, match=r"pi_grad.*stream 0"):
        describe(CudaArray(np.zeros(3, np.float32), stream=0), "pi_grad")


@pytest.mark.parametrize(
    ("typestr", "want"), [("<f4", "float32"), ("<f2", "float16"), ("|b1", "bool"), ("|u1", "uint8"), ("|i1", "int8")]
)
def test_typestr(typestr, want):
    assert describe(CudaArray(np.zeros(3, np.uint8), typestr=typestr)).dtype == want


@pytest.mark.parametrize("typestr", [">f4", "<U4", "f4", "<f", "<fx", "|O8"])
def test_typestr_that_is_none_of_ours(typestr):
    with pytest.raises(TypeError, match="q_logits"):
        describe(CudaArray(np.zeros(3, np.float32), typestr=typestr), "q_logits")


@pytest.mark.parametrize("typestr", ["<V2", "|V2", "<f2"])
def test_a_i5_bfloat16_by_the_dtype_of_the_object(typestr):
    """Producers send void or even float16; the object's own dtype says what it is."""
    array = CudaArray(np.zeros(3, np.float16), typestr=typestr)
    array.dtype = "torch.bfloat16"
    assert describe(array).dtype == "bfloat16"


def test_a_i5_void_is_refused_with_advice():
    with pytest.raises(TypeError, match=r"pi_logits.*DLPack.*bfloat16"):
        describe(CudaArray(np.zeros(3, np.float16), typestr="<V2"), "pi_logits")


def test_a_i5_void_goes_on_to_dlpack():
    class Both(DLPack, CudaArray):
        def __init__(self, array):
            CudaArray.__init__(self, array, typestr="<V2")
            DLPack.__init__(self, array, dtype=(fake.BFLOAT, 16), device=(fake.CUDA, 1))

    got = describe(Both(np.zeros(3, np.float16)))
    assert (got.dtype, got.device) == ("bfloat16", "cuda:1")


def test_device_of_an_array_interface_from_the_dlpack_query():
    array = CudaArray(np.zeros(3, np.float32))
    assert describe(array).ordinal == -2
    type(array).__dlpack_device__ = lambda self: (fake.CUDA, 5)
    try:
        assert describe(array).ordinal == 5
    finally:
        del type(array).__dlpack_device__


@pytest.mark.parametrize("data", [(0, False), (None, False)])
def test_a_i1_null_of_an_empty_array(data):
    assert describe(CudaArray(np.zeros((0, 3), np.float32), data=data)).address == 0


def test_a_i1_null_of_an_array_that_is_not_empty():
    with pytest.raises(BufferError, match=r"pi_logits.*null"):
        describe(CudaArray(np.zeros((2, 3), np.float32), data=(0, False)), "pi_logits")


@pytest.mark.parametrize("value", [(2, -3), (2**62, 4)])
def test_shapes_that_cannot_be(value):
    with pytest.raises((ValueError, OverflowError), match="q_logits"):
        describe(CudaArray(np.zeros(6, np.float32), shape=value, data=(0, False)), "q_logits")


def test_an_error_of_the_producer_is_passed_on():
    class Broken:
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("the producer is broken")

    with pytest.raises(RuntimeError, match="the producer is broken"):
        describe(Broken())


# ---- DLPack ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [None, (1, 0), (1, 3)])
def test_dlpack(version):
    array = np.zeros((4, 6), np.float32)[:, ::2]
    producer = DLPack(array, version=version, counted=True)
    got = describe(producer)
    assert (got.shape, got.strides, got.dtype, got.device) == ((4, 3), (6, 2), "float32", "cpu")
    assert got.address == fake.address(array)
    assert producer.requests[0]["max_version"] >= (1, 0)
    assert "stream" not in producer.requests[0]
    assert producer.deleted == 0
    del got
    gc.collect()
    assert producer.deleted == 1


def test_dlpack_of_a_producer_without_versions():
    producer = DLPack(np.zeros(3, np.float32), old=True)
    assert describe(producer).dtype == "float32"
    assert len(producer.requests) == 2


def test_dlpack_without_strides():
    assert describe(DLPack(np.zeros((2, 3, 4), np.float32), strides=None)).strides == (12, 4, 1)


def test_dlpack_byte_offset():
    array = np.zeros(8, np.float32)
    assert describe(DLPack(array, offset=12)).address == fake.address(array)


def test_dlpack_bfloat16():
    assert describe(DLPack(np.zeros(3, np.float16), dtype=(fake.BFLOAT, 16))).dtype == "bfloat16"


def test_dlpack_read_only():
    producer = DLPack(np.zeros(3, np.float32), flags=fake.READ_ONLY)
    assert describe(producer).readonly
    with pytest.raises(BufferError, match=r"pi_grad.*read-only"):
        describe(producer, "pi_grad", output=True)


def test_dlpack_that_is_a_copy():
    with pytest.raises(BufferError, match=r"pi_grad.*copy"):
        describe(DLPack(np.zeros(3, np.float32), flags=fake.IS_COPIED), "pi_grad")


def test_dlpack_of_another_major_version():
    producer = DLPack(np.zeros(3, np.float32), version=(2, 0))
    with pytest.raises(BufferError, match="version 2"):
        describe(producer)


@pytest.mark.parametrize("name", [b"used_dltensor", b"used_dltensor_versioned", b"something"])
def test_capsules_of_another_name(name):
    with pytest.raises(BufferError, match="capsule"):
        describe(DLPack(np.zeros(3, np.float32), name=name))


def test_dlpack_vector_types():
    with pytest.raises(TypeError, match="lanes"):
        describe(DLPack(np.zeros(3, np.float32), lanes=4))


@pytest.mark.parametrize(
    ("device", "want"),
    [((fake.CUDA, 3), "cuda:3"), ((fake.CUDA_HOST, 0), "cpu"), ((fake.MANAGED, 0), "cuda"), ((fake.CPU, 0), "cpu")],
)
def test_dlpack_devices(device, want):
    assert describe(DLPack(np.zeros(3, np.float32), device=device)).device == want


def test_dlpack_on_a_device_of_another_kind():
    with pytest.raises(BufferError, match=f"type {fake.METAL}"):
        describe(DLPack(np.zeros(3, np.float32), device=(fake.METAL, 0)))


def test_dlpack_is_told_the_stream():
    producer = DLPack(np.zeros(3, np.float32), device=(fake.CUDA, 0))
    describe(producer, device=0, stream=0x77)
    describe(producer)
    assert [r["stream"] for r in producer.requests] == [0x77, -1]


def test_dlpack_on_a_gpu_without_a_stream_to_order_by():
    producer = DLPack(np.zeros(3, np.float32), device=(fake.CUDA, 0))
    with pytest.raises(ValueError, match=r"q_logits.*stream"):
        describe(producer, "q_logits", device=0)
    assert not producer.requests


def test_wrong_device_is_seen_before_anything_is_exported():
    producer = DLPack(np.zeros(3, np.float32), device=(fake.CUDA, 1))
    with pytest.raises(BufferError, match=r"q_logits.*cuda:1.*cpu"):
        describe(producer, "q_logits", device=-1)
    assert not producer.requests


# ---- the C exchange API ---------------------------------------------------------------------------------------------


def test_exchange_api():
    cls = exchange_class()
    array = np.zeros((4, 6), np.float32)[:, ::2]
    got = describe(cls(array))
    assert (got.shape, got.strides, got.dtype, got.device) == ((4, 3), (6, 2), "float32", "cpu")
    assert cls.calls == {"borrowed": 1, "owned": 0, "deleted": 0, "stream": 0}


def test_exchange_api_is_looked_up_once_per_type():
    cls = exchange_class()
    array = np.zeros(3, np.float32)
    describe(cls(array))
    del cls.__dlpack_c_exchange_api__
    describe(cls(array))
    assert cls.calls["borrowed"] == 2


def test_exchange_api_is_inherited():
    cls = exchange_class()
    describe(type("Parameter", (cls,), {})(np.zeros(3, np.float32)))
    assert cls.calls["borrowed"] == 1


def test_exchange_api_for_outputs_asks_for_the_flags():
    """A borrowed tensor does not say that it is read-only."""
    cls = exchange_class(flags=fake.READ_ONLY)
    assert not describe(cls(np.zeros(3, np.float32))).readonly
    with pytest.raises(BufferError, match=r"pi_grad.*read-only"):
        describe(cls(np.zeros(3, np.float32)), "pi_grad", output=True)
    gc.collect()
    assert cls.calls == {"borrowed": 1, "owned": 1, "deleted": 1, "stream": 0}


def test_exchange_api_without_borrowing():
    cls = exchange_class(borrow=False)
    got = describe(cls(np.zeros(3, np.float32)))
    assert cls.calls["owned"] == 1
    assert cls.calls["deleted"] == 0
    del got
    gc.collect()
    assert cls.calls["deleted"] == 1


def test_exchange_api_of_a_later_major_version():
    old = exchange_class()
    new = exchange_class(major=2, previous=old.api)
    describe(new(np.zeros(3, np.float32)))
    assert old.calls["borrowed"] == 1
    assert new.calls["borrowed"] == 0


def test_exchange_api_of_later_major_versions_only():
    cls = exchange_class(major=2)
    cls.__cuda_array_interface__ = CudaArray(np.zeros(3, np.float16)).__cuda_array_interface__
    assert describe(cls(np.zeros(3, np.float32))).dtype == "float16"
    assert cls.calls["borrowed"] == 0


def test_exchange_capsule_of_another_name():
    cls = exchange_class(name=b"other")
    with pytest.raises(TypeError, match="not an array"):
        describe(cls(np.zeros(3, np.float32)))


def test_exchange_api_null_and_offset():
    cls = exchange_class()
    array = np.zeros(8, np.float32)
    assert describe(cls(array, offset=8)).address == fake.address(array)
    assert describe(cls(array[:0], data=0)).shape == (0,)
    with pytest.raises(BufferError, match="null"):
        describe(cls(array, data=0))


def test_first_sight_of_a_type_from_many_threads():
    classes = [exchange_class() for _ in range(50)]
    array = np.zeros((2, 3), np.float32)
    barrier, errors = threading.Barrier(8), []

    def work():
        barrier.wait()
        try:
            for cls in classes:
                assert describe(cls(array)).shape == (2, 3)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# ---- the same step through every protocol ---------------------------------------------------------------------------


WAYS = {
    "numpy": lambda x: x,
    "memoryview": memoryview,
    "dlpack": DLPack,
    "dlpack 0.x": lambda x: DLPack(x, old=True),
    "exchange": exchange_class(),
    "pointer": lambda x: qpi.pointer(fake.address(x), x.shape, x.dtype.name, device="cpu", owner=x),
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_smoke(op, isv, way, dtype):
    q, pi, grad = smoke(dtype)
    op.step(WAYS[way](q), WAYS[way](pi), WAYS[way](grad))
    assert_allclose(grad, SMOKE_GRAD, atol=2e-6 if dtype == "float32" else 1e-3)
    assert abs(isv.read().kl_ema - SMOKE_KL) < 3e-6


def test_a_i5_smoke_in_bfloat16(op, isv):
    q, _, _ = smoke()
    pi = np.array([[0.5, 1, 3]], ml_dtypes.bfloat16)
    grad = np.zeros((1, 3), np.float32)
    op.step(0 * q, pi, grad)
    assert_allclose(grad, [[-0.265907975, -0.222167711, 0.488075686]], atol=1e-5)
    grad[:] = 0
    op.step(0 * q, DLPack(pi.view(np.uint16), dtype=(fake.BFLOAT, 16)), grad)
    assert_allclose(grad, [[-0.265907975, -0.222167711, 0.488075686]], atol=1e-5)


def test_masks_of_three_dtypes(op):
    q, pi, _ = smoke()
    want = np.zeros_like(pi)
    op.step(q, np.array([[1, -np.inf, -1]], np.float32), want)
    for dtype in (bool, np.uint8, np.int8):
        grad = np.zeros_like(pi)
        op.accumulate(q, pi, grad, legal_actions=np.array([[1, 0, 1]], dtype))
        assert_array_equal(grad, want)
    for dtype in (np.float32, np.int32):
        with pytest.raises(TypeError, match="legal_actions"):
            op.step(q, pi, want, legal_actions=np.ones((1, 3), dtype))


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool", "complex64"])
@pytest.mark.parametrize("which", ["q_logits", "pi_logits", "pi_grad"])
def test_a_i5_unsupported_dtypes_are_named(op, dtype, which):
    arrays = dict(zip(("q_logits", "pi_logits", "pi_grad"), smoke(), strict=True))
    arrays[which] = arrays[which].astype(dtype)
    with pytest.raises(TypeError, match=f"{which}.*{dtype}"):
        op.step(*arrays.values())


def test_a_gradient_in_a_dtype_of_its_own(op):
    q, pi, grad = smoke()
    for pi_dtype, grad_dtype in ((np.float32, np.float16), (np.float16, ml_dtypes.bfloat16)):
        with pytest.raises(TypeError, match=r"pi_grad.*pi_logits"):
            op.step(q, pi.astype(pi_dtype), grad.astype(grad_dtype))


@pytest.mark.parametrize("way", ["numpy", "dlpack", "interface", "pointer", "exchange"])
def test_a_i4_read_only_outputs(op, way):
    q, pi, grad = smoke()
    locked = grad.view()
    locked.flags.writeable = False
    output = {
        "numpy": lambda: locked,
        "dlpack": lambda: DLPack(grad, flags=fake.READ_ONLY),
        "interface": lambda: CudaArray(grad, data=(fake.address(grad), True)),
        "pointer": lambda: qpi.pointer(fake.address(grad), grad.shape, device="cpu", readonly=True),
        "exchange": lambda: exchange_class(flags=fake.READ_ONLY)(grad),
    }[way]()
    with pytest.raises(BufferError, match="pi_grad"):
        op.step(q, pi, output)
    assert not grad.any()


@pytest.mark.parametrize("way", ["numpy", "dlpack", "pointer"])
def test_a_i4_read_only_inputs(op, way):
    q, pi, grad = smoke()
    for array in (q, pi):
        array.flags.writeable = False
    wrap = {
        "numpy": lambda x: x,
        "dlpack": lambda x: DLPack(x, flags=fake.READ_ONLY),
        "pointer": lambda x: qpi.pointer(fake.address(x), x.shape, device="cpu", readonly=True),
    }[way]
    op.step(wrap(q), wrap(pi), grad)
    assert_allclose(grad, SMOKE_GRAD, atol=2e-6)


def test_gpu_arrays_on_the_cpu_are_refused(op):
    q, pi, grad = smoke()
    for other in (CudaArray(pi), DLPack(pi, device=(fake.CUDA, 0)), exchange_class(device=(fake.CUDA, 0))(pi)):
        with pytest.raises(BufferError, match=r"pi_logits.*cuda.*cpu"):
            op.step(q, other, grad)
    assert not grad.any()


def test_the_capsule_lives_until_the_step_is_done(op):
    q, pi, grad = smoke()
    producers = [DLPack(x, counted=True) for x in (q, pi, grad)]
    op.step(*producers)
    gc.collect()
    assert [p.deleted for p in producers] == [1, 1, 1]
    bound = op.bind(*producers)
    gc.collect()
    assert [p.deleted for p in producers] == [1, 1, 1]
    del bound
    gc.collect()
    assert [p.deleted for p in producers] == [2, 2, 2]


def test_references_are_not_leaked(op):
    q, pi, grad = smoke()
    mask, weights, scale = np.ones((1, 3), bool), np.ones(1, np.float32), np.ones(1, np.float32)
    arrays = [q, pi, grad, mask, weights, scale]
    wrapped = [exchange_class()(pi), memoryview(pi)]
    before = [sys.getrefcount(x) for x in arrays + wrapped]
    for _ in range(100):
        op.step(q, pi, grad, legal_actions=mask, row_weights=weights, grad_scale=scale)
        for other in wrapped:
            op.accumulate(q, other, grad)
        for wrong in (mask.astype(float), weights):
            with pytest.raises((TypeError, ValueError)):
                op.step(q, pi, grad, legal_actions=wrong)
    del wrong, other
    gc.collect()
    assert [sys.getrefcount(x) for x in arrays + wrapped] == before


# ---- torch ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_torch_is_found_but_not_imported_by_us():
    import subprocess

    program = "import sys, qpi_distill.adapters.torch, qpi_distill.adapters.cupy, qpi_distill.adapters.numba, \
        qpi_distill.adapters.jax; assert not {'torch', 'cupy', 'numba', 'jax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_smoke(op, torch, dtype):
    q, pi, grad = (torch.tensor(x).to(getattr(torch, dtype)) for x in smoke())
    op.step(q, pi, grad)
    assert_allclose(grad.float().numpy(), SMOKE_GRAD, atol={"float32": 2e-6, "float16": 1e-3, "bfloat16": 4e-3}[dtype])


def test_a_i6_autograd_flags_stay(op, torch):
    q0, pi0, grad = (torch.tensor(x) for x in smoke())
    q = torch.nn.Parameter(q0) * 1
    pi = torch.nn.Parameter(pi0)
    op.step(q, pi, grad)
    assert_allclose(grad.numpy(), SMOKE_GRAD, atol=2e-6)
    assert q.requires_grad
    assert q.grad_fn is not None
    assert pi.requires_grad
    assert pi.is_leaf
    pi.grad = torch.zeros_like(pi0)
    op.step(q, pi, pi.grad)
    assert_allclose(pi.grad.numpy(), SMOKE_GRAD, atol=2e-6)
    with pytest.raises(BufferError, match=r"pi_grad.*grad"):
        op.step(q, pi, torch.nn.Parameter(torch.zeros_like(pi0)))


def test_torch_strides_and_broadcasts(op, torch):
    q, pi, _ = (torch.tensor(x) for x in smoke())
    grad = torch.zeros(3, 8)[:, 1:7:2].T[:1]
    with pytest.raises(ValueError, match="pi_grad"):
        op.step(q, pi, torch.zeros(3, 1))
    grad = torch.zeros(4, 8)[:, 1:7:2]
    op.step(q.expand(4, 3, 2), pi.expand(4, 3), grad)
    assert_allclose(grad.numpy(), np.repeat(SMOKE_GRAD, 4, 0), atol=2e-6)
    with pytest.raises(BufferError, match=r"pi_grad.*broadcast"):
        op.step(q.expand(4, 3, 2), pi.expand(4, 3), torch.zeros(1, 3).expand(4, 3))


def test_torch_tensors_without_plain_memory(op, torch):
    q, pi, grad = (torch.tensor(x) for x in smoke())
    for other in (torch.zeros(1, 3, device="meta"), torch.zeros(1, 3).to_sparse()):
        with pytest.raises(BufferError, match="pi_logits"):
            op.step(q, other, grad)
    negated = torch.complex(pi, pi).conj().imag
    assert negated.is_neg()
    with pytest.raises(BufferError, match=r"pi_logits.*neg"):
        op.step(q, negated, grad)
    op.step(q, negated.resolve_neg(), grad)


# ---- qpi.pointer ----------------------------------------------------------------------------------------------------


def test_pointer():
    array = np.zeros((2, 3), np.float32)
    p = qpi.pointer(fake.address(array), [2, 3], device="cpu", owner=array)
    assert (p.shape, p.strides, p.dtype, p.device, p.packed) == ((2, 3), (3, 1), "float32", "cpu", True)
    assert_array_equal(np.asarray(p), array)
    np.asarray(p)[1, 2] = 7
    assert array[1, 2] == 7
    assert not hasattr(p, "__cuda_array_interface__")


def test_pointer_keeps_its_owner():
    array = np.arange(4, dtype=np.float32)
    view = np.asarray(qpi.pointer(fake.address(array), (4,), device="cpu", owner=array))
    del array
    gc.collect()
    assert_array_equal(view, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, (2,)), BufferError),
        ((-8, (2,)), ValueError),
        ((8, (-1,)), ValueError),
        ((8, (2**62, 4)), OverflowError),
        ((8, (2**63,)), OverflowError),
        ((2**64, (1,)), OverflowError),
        ((8, (2,), "float128"), TypeError),
        ((8, (2,), "complex64"), TypeError),
    ],
)
def test_pointers_that_cannot_be(arguments, error):
    with pytest.raises(error):
        qpi.pointer(*arguments, device="cpu")


def test_pointer_needs_a_device():
    with pytest.raises(TypeError):
        qpi.pointer(8, (1,))
    with pytest.raises(ValueError, match="device"):
        qpi.pointer(8, (1,), device=None)
    with pytest.raises(ValueError, match="strides"):
        qpi.pointer(8, (1, 2), device="cpu", strides=(1,))


def test_pointer_to_nothing():
    assert qpi.pointer(0, (0, 3), device="cpu").shape == (0, 3)


@pytest.mark.parametrize("dtype", ["bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)])
def test_pointer_dtypes(dtype):
    assert qpi.pointer(8, (1,), dtype, device="cpu").dtype == "bfloat16"
    assert qpi.pointer(8, (1,), np.float16, device="cpu").dtype == "float16"
    assert not hasattr(qpi.pointer(8, (1,), dtype, device="cpu"), "__array_interface__")


@pytest.mark.parametrize("rows", [2**31, 2**32 + 1, 2**40, 2**55])
def test_a_l1_rows_beyond_32_bits_are_not_truncated(op, rows):
    """No such memory: the sizes are refused or passed on whole, and the rows of an int32 are never run."""
    q = qpi.pointer(64, (rows, 3, 2), device="cpu", strides=(0, 2, 1))
    pi = qpi.pointer(64, (rows, 3), device="cpu", strides=(0, 1))
    grad = qpi.pointer(2**20, (rows, 3), device="cpu")
    with pytest.raises((OverflowError, BufferError), match=r"rows|pi_grad"):
        op.step(q, pi, qpi.pointer(64, (rows, 3), device="cpu") if rows < 2**40 else grad)


def test_linspace():
    got = qpi.linspace(-10, 10, 21)
    assert got.dtype == np.float32
    assert_array_equal(got, np.arange(-10, 11))
    assert qpi.linspace(3, 3, 1).tolist() == [3]
    with pytest.raises(ValueError, match="atoms"):
        qpi.linspace(-1, 1, 0)
    for low in (np.nan, np.inf, 1e39):
        with pytest.raises(ValueError, match="finite"):
            qpi.linspace(low, 1, 3)


def test_frameworks_are_told_apart_by_module():
    from qpi_distill import adapters

    torch_like = type("Tensor", (), {"__module__": "torch"})
    parameter = type("Parameter", (torch_like,), {"__module__": "my.models"})
    assert adapters.find(parameter).name == "torch"
    assert adapters.find(type("ArrayImpl", (), {"__module__": "jaxlib._jax"})).immutable
    assert adapters.find(np.ndarray) is None


def test_arrays_of_an_immutable_framework_are_no_outputs(op):
    q, pi, grad = smoke()
    immutable = type("ArrayImpl", (DLPack,), {"__module__": "jaxlib._jax"})
    op.step(immutable(q), immutable(pi), grad)
    assert_allclose(grad, SMOKE_GRAD, atol=2e-6)
    with pytest.raises(BufferError, match=r"pi_grad.*jax"):
        op.step(q, pi, immutable(0 * grad))


def test_torch_of_before_the_exchange_api(op):
    """DLPack comes before the array interface there, and of a detached alias."""

    class Tensor(DLPack):
        __module__ = "torch"
        requires_grad = False

        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("requires grad")

        def detach(self):
            self.detached = DLPack(self.array)
            return self.detached

    q, pi, grad = (Tensor(x) for x in smoke())
    op.step(q, pi, grad)
    assert_allclose(grad.array, SMOKE_GRAD, atol=2e-6)
    assert len(pi.detached.requests) == 1
    assert not pi.requests


def test_describe_reports_all_of_it():
    assert repr(_arrays.describe(np.zeros((2, 3), np.float16))).endswith("float16[2, 3] on cpu>")
