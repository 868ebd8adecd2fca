"""Control laws and flight recorder on a GPU: the CPU's bits, and records of replayed graphs."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import backends
import qpi_distill as qpi
from stepping import arguments, distiller, observe, random_problem

LAM = [law.name for law in qpi.ISV.laws()["lam"]]
TAU = [law.name for law in qpi.ISV.laws()["tau"]]


@pytest.fixture
def driver():
    return pytest.importorskip("cuda_driver")


@pytest.mark.sanitizer
@pytest.mark.parametrize("tau_law", TAU)
@pytest.mark.parametrize("law", LAM)
def test_the_laws_give_the_bits_of_the_cpu(gpu, law, tau_law):
    rng = np.random.default_rng(LAM.index(law) + 10 * TAU.index(tau_law))
    slots = {"lam_law": law, "tau_law": tau_law, "lam_min": 1e-3, "lam_max": 10, "lam_steps": 70, "tau_steps": 50}
    slots |= {"kl_alpha": 0.3, "dual_rate": 0.2, "mpo_rate": 0.2, "entropy_rate": 0.2}
    pairs = [(b, qpi.ISV(device=b.device, **slots)) for b in (gpu, backends.make("cpu"))]
    recorders = [qpi.Recorder(isv, 100) for _, isv in pairs]
    for _ in range(100):
        kl = 0.05 * rng.lognormal(0, 2) * (rng.random() > 0.05)
        measures = {"uniform_entropy": 2.4, "target_entropy": rng.uniform(0, 2.4), "prior_kl": rng.lognormal(-2, 2)}
        for backend, isv in pairs:
            observe(backend, isv, kl, **measures)
    there, here = (r.drain(stream=b.stream) for r, (b, _) in zip(recorders, pairs, strict=True))
    assert len(here) == 100
    assert there.tobytes() == here.tobytes()


@pytest.mark.parametrize(("rows", "kernel"), [(20, "block"), (20, "stream"), (3000, "tile")])
def test_replays_are_recorded(gpu, driver, rows, kernel):
    """Whatever kernel ends the step: a record for each replay, in a ring that is smaller than their number."""
    problem = random_problem(np.random.default_rng(0), rows, 11, 21)
    isv = qpi.ISV(device=gpu.device)
    op = distiller(isv, problem, kernel=kernel)
    recorder = qpi.Recorder(isv, 4)
    (q, pi, grad), keywords = arguments(gpu, problem)
    gpu.sync()
    with driver.capture(gpu.stream) as out:
        op.step(q, pi, grad, **keywords)
    assert len(recorder.drain(stream=gpu.stream)) == 0
    lams = []
    for _ in range(6):
        out[0].launch(gpu.stream)
        lams.append(np.float32(isv.read(stream=gpu.stream).lam))
    records = recorder.drain(stream=gpu.stream)
    assert_array_equal(records["commits"], [3, 4, 5, 6])
    assert recorder.lost == 2
    assert_array_equal(records["lam"], lams[2:])
    assert_array_equal(records["rows_last"], rows)
    out[0].close()


@pytest.mark.parametrize(("rows", "kernel"), [(20, "block"), (20, "stream"), (3000, "tile")])
def test_a_bound_call_sees_recorders_come_and_go(gpu, rows, kernel):
    """Prepared without a ring, it writes into one that was attached later, into the next one, and into none."""
    problem = random_problem(np.random.default_rng(2), rows, 11, 21)
    isv = qpi.ISV(device=gpu.device)
    (q, pi, grad), keywords = arguments(gpu, problem)
    stream = keywords.pop("stream")
    bound = distiller(isv, problem, kernel=kernel).bind(q, pi, grad, **keywords)
    bound.step(stream)
    for capacity, commits in ((8, [2, 3]), (2, [5, 6])):
        recorder = qpi.Recorder(isv, capacity)
        bound.step(stream)
        bound.step(stream)
        records = recorder.drain(stream=gpu.stream)
        values = isv.read(stream=gpu.stream).raw
        assert_array_equal(records["commits"], commits)
        assert_array_equal(records["rows_last"], rows)
        for name in records.dtype.names:
            assert records[name][-1] == values[name], name
        recorder.close()
        bound.step(stream)
    assert isv.read(stream=gpu.stream).raw["commits"] == 7


def test_draining_is_refused_during_capture(gpu, driver):
    problem = random_problem(np.random.default_rng(1), 20, 5, 9)
    isv = qpi.ISV(device=gpu.device)
    op = distiller(isv, problem)
    recorder = qpi.Recorder(isv, 4)
    (q, pi, grad), keywords = arguments(gpu, problem)
    gpu.sync()
    with driver.capture(gpu.stream) as out:
        op.step(q, pi, grad, **keywords)
        with pytest.raises(qpi.CaptureError):
            recorder.drain(stream=gpu.stream)
    out[0].launch(gpu.stream)
    assert len(recorder.drain(stream=gpu.stream)) == 1
    out[0].close()
