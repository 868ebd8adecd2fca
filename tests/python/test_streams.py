"""Stream arguments: what counts as a stream, and whose stream it is when none is named."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from producers import CudaArray, exchange_class, smoke

import qpi_distill as qpi
from qpi_distill import _arrays, adapters
from qpi_distill._streams import handle_of
from qpi_distill.adapters.base import Adapter

ONE = np.zeros((2, 3), np.float32)


class Protocol:
    def __init__(self, *answer):
        self.answer = answer

    def __cuda_stream__(self):
        return self.answer


class Attribute:
    """An object with nothing but one attribute."""

    def __init__(self, **attribute):
        self.__dict__.update(attribute)


class CStream(ctypes.c_void_p):
    pass


KINDS = {
    "int": 0x77,
    "numpy int": np.uint64(0x77),
    "__cuda_stream__": Protocol(0, 0x77),
    "__cuda_stream__ as an attribute": Attribute(__cuda_stream__=(0, 0x77)),
    "__cuda_stream__ as a list": Attribute(__cuda_stream__=lambda: [0, 0x77]),
    "torch": Attribute(cuda_stream=0x77),
    "cupy": Attribute(ptr=0x77),
    "numba": Attribute(handle=CStream(0x77)),
    "protocol first": type("Both", (Protocol,), {"cuda_stream": 5, "ptr": 6})(0, 0x77),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_handles(kind):
    if kind == "numpy int":
        with pytest.raises(TypeError, match="stream"):
            handle_of(KINDS[kind])
    else:
        assert handle_of(KINDS[kind]) == 0x77


@pytest.mark.parametrize(
    "stream",
    [Protocol(0, 0), Attribute(cuda_stream=0), Attribute(ptr=0), Attribute(handle=CStream(0)), Attribute(handle=0)],
)
def test_the_null_stream_of_an_object_is_the_legacy_one(stream):
    """An object says by its handle 0 that it is the legacy default stream, whose number is 1."""
    assert handle_of(stream) == 1


def test_a_s3_a_bare_zero_is_ambiguous():
    with pytest.raises(ValueError, match=r"stream.*0.*legacy"):
        handle_of(0)


@pytest.mark.parametrize("number", [1, 2, 2**64 - 1])
def test_numbers(number):
    assert handle_of(number) == number


@pytest.mark.parametrize(("number", "error"), [(-1, ValueError), (2**64, OverflowError)])
def test_numbers_that_are_no_handles(number, error):
    for stream in (number, Protocol(0, number), Attribute(ptr=number)):
        with pytest.raises(error, match="stream"):
            handle_of(stream)


@pytest.mark.parametrize(
    "junk", [True, False, 1.5, "main", object(), [1], Attribute(ptr="x"), Attribute(handle=None), Attribute(ptr=True)]
)
def test_a_s3_unknown_objects(junk):
    with pytest.raises(TypeError, match="stream"):
        handle_of(junk)


@pytest.mark.parametrize("answer", [(1, 0x77), (0,), (0, 1, 2), ()])
def test_other_answers_of_the_protocol(answer):
    with pytest.raises(TypeError, match="stream"):
        handle_of(Protocol(*answer))


def test_answers_that_are_no_sequence():
    with pytest.raises(TypeError, match="stream"):
        handle_of(Attribute(__cuda_stream__=lambda: 0x77))


# ---- None: the stream of the library --------------------------------------------------------------------------------


def test_current_stream_by_the_exchange_api():
    cls = exchange_class(stream=lambda ordinal: 0x100 + ordinal)
    assert _arrays.current_stream([cls(ONE), cls(ONE)], 3) == (0x103, None)
    assert cls.calls["stream"] == 1


def test_a_null_answer_means_not_known():
    """A producer that keeps no stream answers null; that is not a request for the default stream."""
    with pytest.raises(ValueError, match="stream"):
        _arrays.current_stream([exchange_class(stream=0)(ONE)], 0)


@pytest.fixture
def framework(monkeypatch):
    """Return a maker of array classes whose library has an adapter."""
    known = {}

    def make(base=CudaArray, **facts):
        adapter = type("Facts", (Adapter,), {"name": "fake", **facts})()
        cls = type("Array", (base,), {})
        known[cls] = adapter
        return cls

    monkeypatch.setattr(adapters, "find", known.get)
    return make


def test_a_null_answer_of_a_framework_that_means_it(framework):
    cls = framework(exchange_class(stream=0), null_is_default=True)
    assert _arrays.current_stream([cls(ONE)], 0) == (1, None)


def test_current_stream_by_the_adapter(framework):
    stream = Attribute(ptr=0x99)
    asked = []

    def current_stream(self, array, device):
        asked.append((array, device))
        return stream

    cls = framework(current_stream=current_stream)
    array = cls(ONE)
    assert _arrays.current_stream([None, ONE, array], 2) == (0x99, stream)
    assert asked == [(array, 2)]


def test_arrays_that_belong_to_no_library_have_no_current_stream():
    for arrays in ([ONE], [CudaArray(ONE, stream=5)], [qpi.pointer(64, (1,), device="cpu")], []):
        with pytest.raises(ValueError, match="stream"):
            _arrays.current_stream(arrays, 0)


def test_two_libraries(framework):
    """Equal streams are fine; of different ones none is the right one."""
    one, two, three = (framework(current_stream=lambda self, a, d, s=s: s) for s in (5, 5, 6))
    assert _arrays.current_stream([one(ONE), two(ONE)], 0)[0] == 5
    with pytest.raises(ValueError, match="differ"):
        _arrays.current_stream([one(ONE), three(ONE)], 0)


def test_a_library_that_does_not_know_does_not_decide(framework):
    silent, loud = framework(), framework(current_stream=lambda self, a, d: 7)
    assert _arrays.current_stream([silent(ONE), loud(ONE)], 0)[0] == 7


def test_adapters_ask_their_framework(monkeypatch):
    """Each by the framework's own call, on modules that stand in for it."""
    import sys
    from types import SimpleNamespace

    from qpi_distill.adapters import cupy, jax, numba, torch

    fake = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda d: ("torch", d), get_current_stream=lambda d: d))
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setitem(sys.modules, "numba.cuda", SimpleNamespace(default_stream=lambda: "default"))
    assert torch.ADAPTER.current_stream(None, 1) == ("torch", 1)
    assert cupy.ADAPTER.current_stream(None, 1) == 1
    assert numba.ADAPTER.current_stream(SimpleNamespace(stream=0), 1) == "default"
    assert numba.ADAPTER.current_stream(SimpleNamespace(stream="bound"), 1) == "bound"
    assert numba.ADAPTER.current_stream(None, 1) == "default"
    assert jax.ADAPTER.current_stream(None, 1) is None


# ---- on the CPU ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [1, 0, Protocol(0, 5), object()])
def test_the_cpu_has_no_streams(op, isv, stream):
    q, pi, grad = smoke()
    bound = op.bind(q, pi, grad)
    before = isv.state_dict()
    calls = [
        lambda: op.step(q, pi, grad, stream=stream),
        lambda: op.accumulate(q, pi, grad, stream=stream),
        lambda: op.distill_grad(q, pi, grad, stream=stream),
        lambda: op.measure(q, pi, stream=stream),
        lambda: op.bind(q, pi, grad, stream=stream),
        lambda: op.commit(stream=stream),
        lambda: op.discard(stream=stream),
        lambda: bound.step(stream),
        lambda: isv.read(stream=stream),
        lambda: isv.set(stream=stream, tau=2.0),
        lambda: isv.reset(stream=stream),
        lambda: isv.clear_faults(stream=stream),
        lambda: isv.control(stream=stream),
        lambda: isv.state_dict(stream=stream),
        lambda: isv.load_state_dict(before, stream=stream),
        lambda: qpi.step(q, pi, grad, support=[-1, 1], isv=isv, reduction="sum", stream=stream),
        lambda: qpi.lambda_controller(isv, stream=stream),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="stream"):
            call()
    assert not grad.any()
    after = isv.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)
