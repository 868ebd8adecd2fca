"""Streams: whose they are, how they are named, and reading the state while a step is in flight."""

import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose

import qpi_distill as qpi
from stepping import arguments, distiller, frozen, make_isv, random_problem

SMOKE_GRAD = [[0.575210383, 0, -0.575210383]]
Q = np.array([[[0, -40], [0, 0], [0, 40]]], np.float32)
PI = np.array([[1, 0, -1]], np.float32)
PAIR = np.array([-1, 1], np.float32)


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def cupy():
    return pytest.importorskip("cupy")


def operator(**choices):
    isv = qpi.ISV(lam=1.0, device="cuda:0")
    return isv, qpi.Distiller(support=PAIR, actions=3, isv=isv, reduction="sum", value_scale="none", **choices)


class Protocol:
    """Nothing but the protocol method."""

    def __init__(self, handle, version=0):
        self.answer = (version, handle)

    def __cuda_stream__(self):
        return self.answer


KINDS = {
    "None": lambda s: None,
    "int": lambda s: s.cuda_stream,
    "torch": lambda s: s,
    "__cuda_stream__": lambda s: Protocol(s.cuda_stream),
    "cupy": lambda s: pytest.importorskip("cupy").cuda.ExternalStream(s.cuda_stream),
    "numba": lambda s: pytest.importorskip("numba.cuda").external_stream(s.cuda_stream),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_s3_work_goes_to_the_stream_that_is_meant(gpu, torch, kind):
    """A slow kernel in front: only work on the same stream sees the inputs that come after it."""
    isv, op = operator()
    q = torch.tensor(Q, device="cuda")
    values = torch.tensor(PI, device="cuda")
    stream = torch.cuda.Stream()
    for _ in range(20):
        pi, grad = torch.zeros_like(values), torch.full_like(values, 9)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2 * 10**7)
            pi.copy_(values)
            grad.zero_()
            op.distill_grad(q, pi, grad, stream=KINDS[kind](stream))
        stream.synchronize()
        assert_allclose(grad.cpu().numpy(), SMOKE_GRAD, atol=2e-6)
    assert isv.read().observations == 20


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_s3_bound_calls_too(gpu, torch, kind):
    _, op = operator()
    q, values = torch.tensor(Q, device="cuda"), torch.tensor(PI, device="cuda")
    pi, grad = torch.zeros_like(values), torch.full_like(values, 9)
    bound = op.bind(q, pi, grad)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(2 * 10**7)
        pi.copy_(values)
        grad.zero_()
        bound.distill_grad(KINDS[kind](stream))
    stream.synchronize()
    assert_allclose(grad.cpu().numpy(), SMOKE_GRAD, atol=2e-6)


def test_a_s3_current_stream_of_cupy(gpu, cupy):
    isv, op = operator()
    q, values = cupy.asarray(Q), cupy.asarray(PI)
    pi, grad = cupy.zeros_like(values), cupy.full_like(values, 9)
    slow = cupy.RawKernel(
        'extern "C" __global__ void slow() { long long t = clock64(); while (clock64() - t < 20000000) {} }', "slow"
    )
    slow((1,), (1,), ())
    cupy.cuda.Device().synchronize()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        slow((1,), (1,), ())
        pi[...] = values
        grad[...] = 0
        op.distill_grad(q, pi, grad)
        stream.synchronize()
    assert_allclose(cupy.asnumpy(grad), SMOKE_GRAD, atol=2e-6)
    assert isv.read().observations == 1


class Array:
    """A CUDA array interface around someone else's memory, with any stream field."""

    def __init__(self, tensor, **fields):
        self.owner = tensor
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": "<f4",
            "data": (tensor.data_ptr(), False),
            "version": 3,
            **fields,
        }


@pytest.mark.parametrize("field", ["absent", "None", "1", "2", "handle"])
def test_a_s3_stream_field_of_the_array_interface(gpu, torch, field):
    """The producer's stream is waited for by events: a slow producer on its own stream is seen."""
    _, op = operator()
    q, values = torch.tensor(Q, device="cuda"), torch.tensor(PI, device="cuda")
    producer, work = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(5):
        pi, grad = torch.zeros_like(values), torch.zeros_like(values)
        torch.cuda.synchronize()
        fields = {"absent": {}, "None": {"stream": None}, "1": {"stream": 1}, "2": {"stream": 2}}.get(
            field, {"stream": producer.cuda_stream}
        )
        if field == "handle":
            with torch.cuda.stream(producer):
                torch.cuda._sleep(2 * 10**7)
                pi.copy_(values)
        else:
            pi.copy_(values)
            torch.cuda.synchronize()
        op.distill_grad(Array(q), Array(pi, **fields), Array(grad), stream=work.cuda_stream)
        if field == "handle":
            with torch.cuda.stream(producer):  # the producer goes on after us, not before
                pi.zero_()
        work.synchronize()
        torch.cuda.synchronize()
        assert_allclose(grad.cpu().numpy(), SMOKE_GRAD, atol=2e-6)


def test_a_s3_stream_field_zero_is_refused(gpu, torch):
    _, op = operator()
    q, pi, grad = (torch.tensor(x, device="cuda") for x in (Q, PI, 0 * PI))
    with pytest.raises(ValueError, match=r"pi_logits.*stream"):
        op.step(Array(q), Array(pi, stream=0), Array(grad), stream=torch.cuda.Stream())
    assert not grad.any()


@pytest.mark.parametrize("kind", ["None", "torch", "cupy"])
def test_a_s3_default_streams_of_the_frameworks(gpu, torch, kind):
    """Their handle is 0; as objects of a framework they mean the legacy default stream."""
    isv, op = operator()
    q, pi, grad = (torch.tensor(x, device="cuda") for x in (Q, PI, 0 * PI))
    stream = {"None": lambda: None, "torch": torch.cuda.default_stream}.get(
        kind, lambda: pytest.importorskip("cupy").cuda.Stream.null
    )()
    op.step(q, pi, grad, stream=stream)
    assert_allclose(grad.cpu().numpy(), SMOKE_GRAD, atol=2e-6)
    assert isv.read().observations == 1


@pytest.mark.parametrize("bad", [0, -1, "main", 1.5, object(), Protocol(5, version=1)])
def test_a_s3_streams_that_are_none(gpu, torch, bad):
    _, op = operator()
    q, pi, grad = (torch.tensor(x, device="cuda") for x in (Q, PI, 0 * PI))
    error = (ValueError, OverflowError) if isinstance(bad, int) else (TypeError, ValueError)
    with pytest.raises(error, match="stream"):
        op.step(q, pi, grad, stream=bad)
    torch.cuda.synchronize()
    assert not grad.any()


def test_a_s3_unknown_object_is_a_type_error(gpu, torch):
    _, op = operator()
    q, pi, grad = (torch.tensor(x, device="cuda") for x in (Q, PI, 0 * PI))
    with pytest.raises(TypeError, match="stream"):
        op.step(q, pi, grad, stream=object())


def test_a_s3_no_stream_and_no_framework_is_an_error(gpu):
    _, op = operator()
    arrays = [gpu.put(x) for x in (Q, PI, 0 * PI)]
    with pytest.raises(ValueError, match="stream"):
        op.step(*arrays)
    assert not gpu.get(arrays[2]).any()


@pytest.mark.parametrize("number", [1, 2])
def test_the_streams_with_a_number(gpu, number):
    """1 is the legacy default stream, 2 the per-thread one; both may be asked for by name."""
    isv, op = operator()
    q, pi, grad = (gpu.put(x) for x in (Q, PI, 0 * PI))
    op.step(q, pi, grad, stream=number)
    gpu.core.sync()
    assert_allclose(gpu.get(grad), SMOKE_GRAD, atol=2e-6)
    assert isv.read(stream=number).observations == 1


def test_reading_waits_for_the_last_step_and_for_nothing_else(gpu, torch):
    """The step in flight is seen; a slow kernel on another stream of the same GPU is not waited for."""
    isv, op = operator()
    q, pi, grad = (torch.tensor(x, device="cuda") for x in (Q, PI, 0 * PI))
    stream, other, finished = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Event()
    isv.read()
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        torch.cuda._sleep(4 * 10**9)
        finished.record()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(2 * 10**7)
        op.step(q, pi, grad)
    assert isv.read().observations == 1
    assert not finished.query(), "the other stream was waited for"
    torch.cuda.synchronize()


def test_reads_and_steps_in_flight_agree(gpu, torch):
    isv, op = operator()
    q, pi, grad = (torch.tensor(x, device="cuda") for x in (Q, PI, 0 * PI))
    with torch.cuda.stream(torch.cuda.Stream()):
        for n in range(1, 200):
            op.step(q, pi, grad)
            if n % 7 == 0:
                assert isv.read().observations == n


def test_two_isvs_on_two_threads(gpu):
    """A plan shared by two threads, each with its own ISV and stream."""
    problem = random_problem(np.random.default_rng(0), 500, 11, 21)
    results, errors = {}, []

    def work(name):
        try:
            from backends import Cuda

            here = Cuda(gpu.ordinal)
            isv = make_isv(here)
            op = distiller(isv, problem)
            (q, pi, grad), keywords = arguments(here, problem)
            for _ in range(50):
                op.step(q, pi, grad, **keywords)
            results[name] = tuple(frozen(isv.read(stream=here.stream)).items()), here.get(grad).tobytes()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert len(set(results.values())) == 1


def test_state_moves_between_gpu_and_cpu_to_the_bit(gpu):
    from backends import Cpu
    from stepping import run

    cpu = Cpu()
    problem = random_problem(np.random.default_rng(1), 50, 5, 9, value_scale="running_std")
    on_gpu, on_cpu = make_isv(gpu, {"kl_alpha": 0.3}), make_isv(cpu)
    for _ in range(3):
        run(gpu, problem, isv=on_gpu)
    on_cpu.load_state_dict(on_gpu.state_dict(stream=gpu.stream))
    for _ in range(3):
        a, b = run(gpu, problem, isv=on_gpu), run(cpu, problem, isv=on_cpu)
    assert frozen(a.values) == frozen(b.values)
    back = make_isv(gpu)
    back.load_state_dict(on_cpu.state_dict(), stream=gpu.stream)
    assert frozen(run(gpu, problem, isv=back).values) == frozen(run(cpu, problem, isv=on_cpu).values)
