"""CUDA graphs: capture from the first call on, replay, and what a capture must not do."""

import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose

import qpi_distill as qpi
from stepping import arguments, assert_same_bits, distiller, frozen, make_isv, random_problem, run


@pytest.fixture
def driver():
    return pytest.importorskip("cuda_driver")


def smoke_problem(**state):
    d = np.array([[-40, 0, 40]], np.float32)
    problem = random_problem(
        np.random.default_rng(0), 1, 3, 2, span=(-1, 1), state={"lam": 0.5, "kl_alpha": 0.05, **state}
    )
    problem.q = np.stack([np.zeros_like(d), d], -1)
    problem.pi = np.array([[1, 0, -1]], np.float32)
    problem.grad = np.zeros((1, 3), np.float32)
    return problem


def test_a_s2_capture_and_replay(gpu, driver):
    problem = smoke_problem(kl_ema=0.2, observations=1)
    isv = make_isv(gpu, problem.state)
    op = distiller(isv, problem)
    (q, pi, grad), keywords = arguments(gpu, problem)
    gpu.sync()
    with driver.capture(gpu.stream) as out:
        op.distill_grad(q, pi, grad, **keywords)
    assert not gpu.get(grad).any()
    assert isv.read(stream=gpu.stream).observations == 1
    for want in (0.247521038, 0.292666025, 0.335553762):
        out[0].launch(gpu.stream)
        assert_allclose(isv.read(stream=gpu.stream).kl_ema, want, atol=2e-6)
    assert isv.read(stream=gpu.stream).observations == 4
    assert_allclose(gpu.get(grad), [[0.862815574, 0, -0.862815574]], atol=2e-6)
    out[0].close()


@pytest.mark.parametrize("kernel", ["auto", "stream", "tile", "block"])
@pytest.mark.parametrize("rows", [1, 32, 1000, 20_000])
@pytest.mark.parametrize("call", ["step", "accumulate", "distill_grad"])
def test_a_replay_is_a_call(gpu, driver, call, rows, kernel):
    problem = random_problem(np.random.default_rng(rows), rows, 11, 21, weighted=True, masked=True)
    isv = make_isv(gpu)
    op = distiller(isv, problem, kernel=kernel)
    (q, pi, grad), keywords = arguments(gpu, problem)
    gpu.sync()
    with driver.capture(gpu.stream) as out:
        getattr(op, call)(q, pi, grad, **keywords)
        if call == "accumulate":
            isv.commit(stream=gpu.stream)
    for _ in range(3):
        out[0].launch(gpu.stream)
    other = make_isv(gpu)
    want = problem.grad
    for _ in range(3):
        problem.grad = want
        outcome = run(gpu, problem, isv=other, call=call)
        want = outcome.grad
    assert_same_bits(gpu.get(grad), want)
    assert frozen(isv.read(stream=gpu.stream)) == frozen(outcome.values)
    out[0].close()


def test_state_calls_can_be_captured(gpu, driver):
    isv = make_isv(gpu, {"kl_ema": 0.5, "kl_target": 0.01, "observations": 1, "lam": 0.1})
    gpu.sync()
    with driver.capture(gpu.stream) as out:
        isv.control(stream=gpu.stream)
        isv.clear_faults(stream=gpu.stream)
    for _ in range(13):
        out[0].launch(gpu.stream)
    assert isv.read(stream=gpu.stream).lam == 1
    out[0].close()


def test_a_bound_step_can_be_captured(gpu, driver):
    problem = random_problem(np.random.default_rng(0), 50, 11, 21)
    isv = make_isv(gpu)
    (q, pi, grad), keywords = arguments(gpu, problem)
    keywords.pop("stream")
    bound = distiller(isv, problem).bind(q, pi, grad, **keywords)
    gpu.sync()
    with driver.capture(gpu.stream) as out:
        bound.step(gpu.stream)
        bound.step(gpu.stream)
    out[0].launch(gpu.stream)
    assert isv.read(stream=gpu.stream).observations == 2
    out[0].close()


def test_a_graph_outlives_the_making_of_many_plans(gpu, driver):
    """A graph holds what its plan chose, and no plan is ever given up: others come, and the replay stays the call."""
    problem = random_problem(np.random.default_rng(4), 40, 5, 9, weighted=True, masked=True)
    isv = make_isv(gpu)
    op = distiller(isv, problem)
    (q, pi, grad), keywords = arguments(gpu, problem)
    stream = keywords.pop("stream")
    bound = op.bind(q, pi, grad, **keywords)
    gpu.sync()
    with driver.capture(gpu.stream) as out:
        bound.step(stream)
    del bound
    plans = op.plan_count
    scratch = gpu.put(np.zeros((40, 5), np.float32))
    for more in range(1, 101):
        wide = np.zeros((40, 5 + more), np.float32)
        wide[:, :5] = problem.pi
        op.accumulate(q, gpu.put(wide[:, :5]), scratch, **keywords, stream=stream)
    assert op.plan_count == plans + 100
    op.discard(stream)
    for _ in range(3):
        out[0].launch(gpu.stream)
    other, want = make_isv(gpu), problem.grad
    for _ in range(3):
        problem.grad = want
        outcome = run(gpu, problem, isv=other, call="step")
        want = outcome.grad
    assert_same_bits(gpu.get(grad), want)
    assert frozen(isv.read(stream=gpu.stream)) == frozen(outcome.values)
    out[0].close()


def test_a_s2_strided_input_during_capture(gpu, driver):
    """Not seen before by this operator: it works, or it raises before anything is enqueued."""
    problem = random_problem(np.random.default_rng(1), 20, 5, 9)
    wide = np.zeros((20, 10), np.float32)
    wide[:, ::2] = problem.pi
    problem.pi = wide[:, ::2]
    isv = make_isv(gpu)
    op = distiller(isv, problem)
    (q, pi, grad), keywords = arguments(gpu, problem)
    gpu.sync()
    refused = None
    with driver.capture(gpu.stream) as out:
        try:
            op.step(q, pi, grad, **keywords)
        except (ValueError, qpi.CaptureError) as error:
            refused = error
        assert driver.capturing(gpu.stream)
    out[0].launch(gpu.stream)
    assert isv.read(stream=gpu.stream).observations == (refused is None)
    out[0].close()


def test_reading_is_refused_during_capture(gpu, driver):
    problem = random_problem(np.random.default_rng(2), 20)
    isv = make_isv(gpu)
    op = distiller(isv, problem)
    (q, pi, grad), keywords = arguments(gpu, problem)
    gpu.sync()
    with driver.capture(gpu.stream) as out:
        op.step(q, pi, grad, **keywords)
        for refused in (
            lambda: isv.read(stream=gpu.stream),
            lambda: isv.read(),
            lambda: isv.state_dict(stream=gpu.stream),
            lambda: op.measure(q, pi, stream=gpu.stream),
        ):
            with pytest.raises(qpi.CaptureError):
                refused()
            assert driver.capturing(gpu.stream)
    out[0].launch(gpu.stream)
    assert isv.read(stream=gpu.stream).observations == 1
    out[0].close()


FIRST_CALL = """
import sys
sys.path[:0] = {path!r}
import numpy as np
import cuda_driver as cd
from cuda.bindings import driver
from backends import Cuda
gpu = Cuda()
import qpi_distill as qpi
d = np.array([[-40, 0, 40]], np.float32)
q, pi = gpu.put(np.stack([0 * d, d], -1)), gpu.put(np.array([[1, 0, -1]], np.float32))
grad = gpu.put(np.zeros((1, 3), np.float32))
words, bus = np.zeros(494, np.float32), None
words[[486, 487, 491, 493]] = 1, 1, 0.05, 0.05
support = gpu.put(np.array([-1, 1], np.float32))
bus = gpu.put(words)
{before}
gpu.sync()
failed = None
with cd.capture(gpu.stream) as out:
    try:
        {inside}
    except Exception as error:
        failed = error
    assert cd.capturing(gpu.stream), f"the capture was invalidated ({{failed!r}})"
if failed is not None:
    assert isinstance(failed, (qpi.QpiError, ValueError)), repr(failed)
    print("refused:", failed)
    sys.exit()
assert not gpu.get(grad).any()
out[0].launch(gpu.stream)
got = gpu.get(grad)
assert np.allclose(got, [[0.575210383, 0, -0.575210383]], atol=2e-6), got
print("worked")
"""

PLAN = """isv = qpi.ISV(lam=1.0, device="cuda"); gpu.sync()
op = qpi.Distiller(support=support, actions=3, atoms=2, isv=isv, reduction="sum", value_scale="none")"""
STEP = "op.step(q, pi, grad, stream=gpu.stream)"
EVERYTHING = (
    'isv = qpi.ISV.from_buffer(bus, layout="bus", stream=gpu.stream); '
    'qpi.step(q, pi, grad, support=support, isv=isv, reduction="sum", value_scale="none", stream=gpu.stream)'
)
SEED = """qpi.seed_lambda_controller(bus, stream=gpu.stream)"""


def in_fresh_process(before, inside):
    code = FIRST_CALL.format(path=sys.path, before=before, inside=inside)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("driver")
def test_a_s2_first_step_of_a_process_inside_a_capture():
    assert in_fresh_process(PLAN, STEP).startswith("worked")


@pytest.mark.usefixtures("driver")
def test_a_s2_first_call_of_a_process_inside_a_capture():
    """Even making the operator: it works, or it is refused by name and the capture lives on."""
    assert in_fresh_process("", EVERYTHING).startswith(("worked", "refused"))


def test_a_torch_graph(gpu):
    torch = pytest.importorskip("torch")
    problem = random_problem(np.random.default_rng(3), 64, 11, 21)
    q, pi = (torch.tensor(x, device="cuda") for x in (problem.q, problem.pi))
    grad = torch.zeros(64, 11, device="cuda")
    isv = qpi.ISV(device="cuda:0")
    op = qpi.Distiller(support=problem.support, actions=11, isv=isv, reduction="mean")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        op.step(q, pi, grad)
    assert not grad.any()
    for _ in range(4):
        graph.replay()
    torch.cuda.synchronize()
    assert isv.read().observations == 4
    assert grad.any()
