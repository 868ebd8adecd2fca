"""Ranks on a GPU: a communicator of one rank, and the folding of as many records as one likes."""

import contextlib

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import qpi_distill as qpi
from optional import mpi
from qpi_distill._record import RECORD, WORDS, fold
from reference import Fault
from stepping import arguments, distiller, frozen, make_isv, random_problem

STATE = {"lam": 0.3, "kl_target": 0.3, "kl_alpha": 0.5, "kl_tolerance": 1.2}
STEPS = 6


@pytest.fixture
def driver():
    return pytest.importorskip("cuda_driver")


@contextlib.contextmanager
def nccl_group():
    core = pytest.importorskip("nccl.core")
    try:
        communicator = core.Communicator.init(1, 0, core.get_unique_id())
    except Exception as error:  # nccl4py without libnccl says so in its own way
        if "libnccl" not in str(error) and type(error).__name__ != "DynamicLibNotFoundError":
            raise
        pytest.skip(f"NCCL is not installed: {error}")
    try:
        yield communicator
    finally:
        communicator.destroy()


@contextlib.contextmanager
def torch_group(folder):
    torch = pytest.importorskip("torch")
    dist = torch.distributed
    if not (dist.is_available() and dist.is_nccl_available() and torch.cuda.is_available()):
        pytest.skip("torch without NCCL")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def mpi_group():
    yield mpi().COMM_SELF


@pytest.fixture(params=["nccl4py", "torch"])
def nccl(request, gpu, tmp_path):
    """A communicator of one rank that works in stream order."""
    with nccl_group() if request.param == "nccl4py" else torch_group(tmp_path) as group:
        yield group


def capture_mode(group) -> str:
    """torch watches its NCCL from a thread of its own, which asks after events: a global capture would break."""
    return "THREAD_LOCAL" if type(group).__module__.startswith("torch") else "GLOBAL"


def make_ranks(isv, group):
    from qpi_distill.distributed import Ranks

    try:
        return Ranks(isv, group)
    except qpi.DeviceError as error:
        pytest.skip(str(error))


def problems():
    return [
        random_problem(
            np.random.default_rng(step), 300, 11, 21, weighted=True, masked=True, pi_size=0.1 + step % 3,
            value_scale="running_std", state=STATE,
        )
        for step in range(STEPS)
    ]  # fmt: skip


def committed_alone(gpu):
    """The state after each of the steps, without ranks."""
    isv, out = make_isv(gpu, STATE), []
    for problem in problems():
        positional, keywords = arguments(gpu, problem)
        distiller(isv, problem).accumulate(*positional, **keywords)
        isv.commit(stream=gpu.stream)
        out.append(frozen(isv.read(stream=gpu.stream)))
    return out


def test_one_rank_commits_what_one_gpu_would(gpu, nccl):
    isv = make_isv(gpu, STATE)
    ranks = make_ranks(isv, nccl)
    want = committed_alone(gpu)
    assert len({state["lam"] for state in want}) > 2
    for problem, state in zip(problems(), want, strict=True):
        positional, keywords = arguments(gpu, problem)
        distiller(isv, problem).accumulate(*positional, **keywords)
        ranks.commit()  # on the stream of the last call
        assert frozen(isv.read(stream=gpu.stream)) == state


def test_in_a_graph_from_the_first_commit_on(gpu, nccl, driver):
    problem = problems()[0]
    positional, keywords = arguments(gpu, problem)
    other = make_isv(gpu, STATE)
    want = []
    for _ in range(STEPS):
        distiller(other, problem).accumulate(*positional, **keywords)
        other.commit(stream=gpu.stream)
        want.append(frozen(other.read(stream=gpu.stream)))
    isv = make_isv(gpu, STATE)
    op, ranks = distiller(isv, problem), make_ranks(isv, nccl)
    gpu.sync()
    with driver.capture(gpu.stream, capture_mode(nccl)) as out:
        op.accumulate(*positional, **keywords)
        ranks.commit(stream=gpu.stream)
    assert isv.read(stream=gpu.stream).commits == 0, "a capture runs nothing"
    for state in want:
        out[0].launch(gpu.stream)
        assert frozen(isv.read(stream=gpu.stream)) == state
    out[0].close()


def test_nothing_is_allocated_and_nobody_waits(gpu, nccl, driver):
    """A capture would refuse both; a replay then moves the counters by the number of captured commits."""
    isv = make_isv(gpu, STATE)
    ranks = make_ranks(isv, nccl)
    gpu.sync()
    with driver.capture(gpu.stream, capture_mode(nccl)) as out:
        for _ in range(3):
            ranks.commit(stream=gpu.stream)
    for _ in range(2):
        out[0].launch(gpu.stream)
    values = isv.read(stream=gpu.stream)
    assert (values.commits, values.observations) == (6, 0)
    out[0].close()


def test_faults_and_counts_pass_unchanged(gpu, nccl):
    isv = make_isv(gpu)
    ranks = make_ranks(isv, nccl)
    record = np.zeros((), RECORD)
    record["weight"] = record["weighted_kl"] = 1
    record["rows"], record["skipped"], record["faults"] = 2**53 + 1, 2**53 + 3, Fault.WEIGHT | Fault.GRAD_SCALE
    gpu.poke(isv.record, record.tobytes())
    ranks.commit(stream=gpu.stream)
    values = isv.read(stream=gpu.stream, check=False)
    assert (values.rows_last, values.skipped_last) == (2**53 + 1, 2**53 + 3)
    assert values.faults == ("grad_scale", "weight")


def test_the_normaliser_is_on_the_device_and_stays_where_it_is(gpu, nccl):
    ranks = make_ranks(make_isv(gpu), nccl)
    scale = ranks.grad_scale(8, stream=gpu.stream)
    assert np.frombuffer(gpu.peek(scale.address, 4), np.float32)[0] == 0.125
    assert ranks.grad_scale(0, stream=gpu.stream).address == scale.address
    assert np.frombuffer(gpu.peek(scale.address, 4), np.float32)[0] == 0


def test_a_rank_that_has_called_nothing_follows_no_stream(gpu, nccl):
    isv = qpi.ISV(device=gpu.device)
    make_ranks(isv, nccl).commit()
    assert isv.read().commits == 1


def test_nccl_and_the_cpu_do_not_go_together(gpu, nccl):
    from qpi_distill.distributed import Ranks

    with pytest.raises(ValueError, match=r"group: .* the ISV is on cpu"):
        Ranks(qpi.ISV(device="cpu"), nccl)


# ---- MPI ------------------------------------------------------------------------------------------------------------


def test_mpi_goes_through_the_host(gpu, driver):
    with mpi_group() as group:
        isv = make_isv(gpu, STATE)
        ranks = make_ranks(isv, group)
        for problem, state in zip(problems(), committed_alone(gpu), strict=True):
            positional, keywords = arguments(gpu, problem)
            distiller(isv, problem).accumulate(*positional, **keywords)
            ranks.commit()
            assert frozen(isv.read(stream=gpu.stream)) == state
        with driver.capture(gpu.stream) as out:
            isv.control(stream=gpu.stream)
            with pytest.raises(qpi.CaptureError, match="exchanging records by MPI"):
                ranks.commit(stream=gpu.stream)
        assert out[0].nodes == 1, "the capture goes on without it"
        out[0].close()


# ---- the kernels ----------------------------------------------------------------------------------------------------


@pytest.mark.sanitizer
@pytest.mark.parametrize("count", [1, 2, 3, 8, 64, 1000])
def test_records_fold_as_on_the_host(gpu, count):
    from qpi_distill.distributed.folds import folds_of

    rng = np.random.default_rng(count)
    records = np.zeros(count, RECORD)
    for name in RECORD.names:
        if RECORD[name].kind == "f":
            records[name] = rng.normal(size=count) * 10.0 ** rng.integers(-12, 12, count)
        else:
            records[name] = rng.integers(0, 2**32 if RECORD[name].itemsize == 4 else 2**52, count)
    words = records.view(np.int64).reshape(count, WORDS)
    want = np.zeros(WORDS, np.int64)
    fold(words, want)
    try:
        folds = folds_of(gpu.ordinal)
    except qpi.DeviceError as error:
        pytest.skip(str(error))
    parts, into = gpu.put(words), gpu.put(np.full(WORDS, -1, np.int64))
    gpu.sync()
    folds.records(parts, into, int(gpu.stream.handle))
    assert_array_equal(gpu.get(into), want)


# ---- two GPUs -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu2
def test_a_communicator_of_another_gpu_is_refused():
    from qpi_distill.distributed import Ranks

    with (
        nccl_group() as group,
        pytest.raises(ValueError, match="the NCCL communicator is of cuda:0, but the ISV is on cuda:1"),
    ):
        Ranks(qpi.ISV(device="cuda:1"), group)
