"""Every kernel and grid against every other: the same bits; and all of them against the float64 reference.

Sums have a fixed order, and nothing is contracted: so gradient, record and state vector do not depend on which kernel
ran, or on how many blocks.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

import qpi_distill as qpi
from backends import BFLOAT16, Cpu
from reference import Options
from stepping import assert_same_bits, check, faults_of, frozen, make_isv, random_problem, record_bytes, run
from strategies import pairs, problems, spoiled

pytest.importorskip("ml_dtypes")

KERNELS = ("stream", "tile", "block")


def assert_same(a, b):
    assert_same_bits(np.ascontiguousarray(a.grad), np.ascontiguousarray(b.grad))
    if a.record is not None and b.record is not None:
        assert record_bytes(a.record) == record_bytes(b.record)
    assert frozen(a.values) == frozen(b.values)


def forced(gpu, problem, kernel, **choices):
    """Run with one kernel, where it can."""
    try:
        return run(gpu, problem, kernel=kernel, **choices)
    except ValueError as error:
        if "shared memory" in str(error):
            pytest.skip("rows too large for this kernel")
        raise


def assert_right(gpu, problem, kernel="auto", **how):
    """As the plain kernel, to the bit, and as the reference, to what float32 allows."""
    outcome = forced(gpu, problem, kernel, **how)
    assert_same(outcome, run(gpu, problem, kernel="stream", **how))
    check(outcome, problem)


# ---- calls --------------------------------------------------------------------------------------------------------


class TestCommonCalls:
    """The block kernel knows common calls when it is compiled. What makes a call less common changes no bit of it."""

    @pytest.mark.parametrize("mode", ["add", "write"])
    @pytest.mark.parametrize("value_scale", ["none", "running_std"])
    @pytest.mark.parametrize(
        ("rows", "actions", "atoms"),
        [(1, 11, 21), (32, 11, 21), (100, 4, 51), (1000, 11, 21), (1024, 18, 8), (4096, 11, 21), (5000, 2, 100)],
    )
    def test_as_with_options_that_change_nothing(self, gpu, rows, actions, atoms, value_scale, mode):
        rng = np.random.default_rng(rows + atoms)
        problem = random_problem(rng, rows, actions, atoms, value_scale=value_scale, mode=mode, reduction="mean")
        if rows > 1:
            problem.q[rows // 2, 0, 0], problem.pi[rows // 3, -1] = np.nan, np.inf  # skipped rows
            problem.pi[0, 0] = -np.inf
        common = run(gpu, problem, kernel="block", call="step")
        check(common, problem)
        for option in (
            {"weights": np.ones(rows, np.float32)},
            {"legal": np.ones((rows, actions), bool)},
            {"grad_scale": 1.0},
        ):
            assert_same(common, run(gpu, replace(problem, **option), kernel="block", call="step"))
        assert_same(common, run(gpu, problem, kernel="stream", call="step"))
        recorded = make_isv(gpu, problem.state)
        recorder = qpi.Recorder(recorded, capacity=4)
        assert_same(common, run(gpu, problem, isv=recorded, kernel="block", call="step"))
        del recorder

    @pytest.mark.sanitizer
    @pytest.mark.parametrize("rows", [40, 1500])  # one launch, and two
    def test_both_ways_of_launching(self, gpu, rows):
        problem = random_problem(np.random.default_rng(rows), rows, 3, 6)
        assert_same(run(gpu, problem, kernel="block", call="step"), run(gpu, problem, kernel="stream", call="step"))

    @pytest.mark.parametrize(
        "slots", [{"tau": -1.0}, {"lam": np.nan}, {"lam_off": 1}, {"kl_alpha": 2.0}, {"lam_law": 9}]
    )
    def test_a_state_that_makes_no_sense(self, gpu, slots):
        problem = random_problem(np.random.default_rng(3), 40, 11, 21, state=slots)
        common = run(gpu, problem, kernel="block", call="step")
        weighted = replace(problem, weights=np.ones(40, np.float32))
        assert_same(common, run(gpu, weighted, kernel="block", call="step"))
        assert_same(common, run(gpu, problem, kernel="stream", call="step"))
        assert faults_of(common.values) != 0 or slots == {"lam_off": 1}


# ---- kernels ------------------------------------------------------------------------------------------------------


class TestEveryKernel:
    @pytest.mark.parametrize("kernel", KERNELS)
    @pytest.mark.parametrize("atoms", [1, 2, 5, 21, 51, 64, 128])
    @pytest.mark.parametrize("actions", [1, 2, 3, 4, 5, 8, 11, 18, 32, 33, 64])
    def test_shapes(self, gpu, actions, atoms, kernel):
        problem = random_problem(
            np.random.default_rng(actions * 1000 + atoms), 61, actions, atoms, masked=True, weighted=True
        )
        assert_right(gpu, problem, kernel)

    @pytest.mark.parametrize(
        ("actions", "atoms"), [(4096, 3), (3, 1024), (2, 4096), (1000, 70), (5, 129), (18, 200), (3, 333)]
    )
    def test_large_shapes(self, gpu, actions, atoms):
        problem = random_problem(np.random.default_rng(actions), 9, actions, atoms, masked=True)
        assert_right(gpu, problem)

    @pytest.mark.parametrize(
        "rows", [1, 7, 8, 9, 31, 32, 33, 64, 65, 512, 513, 1000, 1024, 1025, 4096, 101_375, 101_376, 101_377, 300_001]
    )
    def test_row_counts(self, gpu, rows):
        problem = random_problem(np.random.default_rng(rows), rows, 11, 21, weighted=True)
        assert_right(gpu, problem)

    @pytest.mark.parametrize("kernel", KERNELS)
    @pytest.mark.parametrize(
        "dtypes",
        [
            (q, pi, grad)
            for q in ("float32", "float16", "bfloat16")
            for pi in ("float32", "float16", "bfloat16")
            for grad in dict.fromkeys(("float32", pi))
        ],
        ids="-".join,
    )
    @pytest.mark.parametrize("rows", [61, 300])
    def test_dtypes(self, gpu, dtypes, kernel, rows):
        problem = random_problem(np.random.default_rng(4), rows, 11, 21, dtypes=dtypes, masked=True, weighted=True)
        assert_right(gpu, problem, kernel)

    @pytest.mark.parametrize("call", ["step", "distill_grad"])
    @pytest.mark.parametrize("kl_stat", ["mean", "row0"])
    @pytest.mark.parametrize("rows", [5, 300, 5000])
    def test_whole_steps(self, gpu, call, kl_stat, rows):
        problem = random_problem(
            np.random.default_rng(rows), rows, 11, 21, kl_stat=kl_stat, value_scale="running_std", masked=True
        )
        assert_right(gpu, problem, call=call)

    @given(problem=spoiled(problems()))
    def test_any_batch(self, gpu, problem):
        assert_right(gpu, problem)

    def test_a_thousand_steps_of_one_loop(self, gpu):
        """State fed back into the next step: any difference would grow."""
        rng = np.random.default_rng(0)
        from stepping import make_isv

        isvs = {kernel: make_isv(gpu, {"kl_target": 0.3}) for kernel in KERNELS}
        problem = random_problem(rng, 37, 5, 7, value_scale="running_std", weighted=True, reduction="mean")
        for _ in range(200):
            problem.q = rng.normal(size=problem.q.shape).astype(np.float32)
            first, *others = (run(gpu, problem, isv=isv, call="step", kernel=k) for k, isv in isvs.items())
            problem.pi -= 20 * (first.grad - problem.grad)
        for other in others:
            assert_same(other, first)


# ---- grids and layouts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 31, 257, 4096, 40_000])
@pytest.mark.parametrize("kernel", KERNELS)
def test_grids_do_not_change_a_bit(gpu, kernel, rows):
    problem = random_problem(np.random.default_rng(rows), rows, 11, 21, weighted=True, masked=True)
    problem.pi[::13] = np.nan
    want = run(gpu, problem, kernel="stream")
    for blocks in (0, 1, 2, 3, 7, 16, 33, 131, 132, 133, 1000):
        assert_same(forced(gpu, problem, kernel, max_blocks=blocks), want)


@given(pair=pairs(spoiled(problems(max_actions=40, max_atoms=64))))
def test_memory_layout_does_not_change_a_bit(gpu, pair):
    packed, other = pair
    assert_same(run(gpu, packed), run(gpu, other))


@pytest.mark.parametrize("dtypes", [("float32",) * 3, ("float16",) * 3, ("bfloat16",) * 3], ids="-".join)
@pytest.mark.parametrize("kernel", ["auto", *KERNELS])
@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("which", ["q", "pi", "grad", "all"])
@pytest.mark.parametrize("rows", [50, 300])
def test_views_that_are_not_aligned(gpu, rows, which, shift, kernel, dtypes):
    """x[1:] of a packed array: element-aligned and no more."""
    problem = random_problem(np.random.default_rng(shift), rows, 11, 21, dtypes=dtypes, masked=True)
    want = run(gpu, problem)
    for name in ("q", "pi", "grad") if which == "all" else (which,):
        array = getattr(problem, name)
        room = np.empty(array.size + 160, array.dtype)
        start = (-room.ctypes.data % 256) // array.itemsize + shift
        view = room[start : start + array.size].reshape(array.shape)
        view[...] = array
        setattr(problem, name, view)
    assert_same(forced(gpu, problem, kernel), want)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rows", [1, 8, 9, 63, 64, 65])
def test_nothing_outside_the_gradient_is_written(gpu, kernel, rows):
    problem = random_problem(np.random.default_rng(rows), rows, 11, 21, mode="write")
    room = np.full((rows + 16, 11), 7, np.float32)
    place = gpu.put(room)
    import qpi_distill as qpi
    from stepping import distiller, make_isv

    op = distiller(make_isv(gpu), problem, kernel=kernel)
    inside = qpi.pointer(place.address + 8 * 11 * 4, (rows, 11), device=0, owner=place)
    op.step(gpu.put(problem.q), gpu.put(problem.pi), inside, stream=gpu.stream)
    after = gpu.get(place)
    assert (after[:8] == 7).all()
    assert (after[8 + rows :] == 7).all()
    want = run(gpu, problem, kernel="stream").grad
    assert_same_bits(np.ascontiguousarray(after[8 : 8 + rows]), want)


def test_explain_names_the_kernel_that_runs(gpu):
    from stepping import distiller, make_isv

    problem = random_problem(np.random.default_rng(0), 8, 11, 21)
    isv = make_isv(gpu)
    for kernel in KERNELS:
        assert kernel in distiller(isv, problem, kernel=kernel).explain(8)
    assert distiller(isv, problem).explain(1 << 20)


# ---- a small subset for compute-sanitizer -------------------------------------------------------------------------


@pytest.mark.sanitizer
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("rows", "actions", "atoms"),
    [(1, 11, 21), (9, 11, 21), (67, 11, 21), (130, 3, 2), (1100, 4, 5), (33, 18, 51), (5, 130, 7), (9, 2, 150)],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_small_steps(gpu, kernel, rows, actions, atoms, dtype):
    problem = random_problem(
        np.random.default_rng(rows),
        rows,
        actions,
        atoms,
        dtypes=(dtype,) * 3,
        masked=True,
        weighted=True,
        grad_scale=0.5,
        value_scale="running_std",
    )
    assert_right(gpu, problem, kernel)


@pytest.mark.sanitizer
@pytest.mark.parametrize("mode", ["add", "write"])
@pytest.mark.parametrize("call", ["step", "accumulate", "distill_grad"])
def test_small_calls(gpu, call, mode):
    problem = random_problem(np.random.default_rng(1), 40, 5, 9, masked=True)
    problem.options = Options(mode=mode)
    problem.pi[3] = np.nan
    assert_right(gpu, problem, call=call)


@pytest.mark.sanitizer
def test_small_measure_discard_control(gpu):
    from stepping import arguments, distiller, make_isv

    problem = random_problem(np.random.default_rng(2), 40, 5, 9)
    isv = make_isv(gpu)
    op = distiller(isv, problem)
    (q, pi, grad), keywords = arguments(gpu, problem)
    assert op.measure(q, pi, stream=gpu.stream).rows == 40
    op.accumulate(q, pi, grad, **keywords)
    op.discard(stream=gpu.stream)
    isv.control(stream=gpu.stream)
    isv.clear_faults(stream=gpu.stream)
    isv.reset(stream=gpu.stream)
    assert isv.read(stream=gpu.stream).observations == 0


def test_half_precision_conversions(gpu):
    """Every float16 and bfloat16 number, read and written by the device, against NumPy."""
    for dtype in (np.dtype(np.float16), BFLOAT16):
        every = np.arange(65536, dtype=np.uint16).view(dtype).reshape(-1, 2)
        problem = random_problem(np.random.default_rng(0), len(every), 2, 1, dtypes=("float32", *(dtype.name,) * 2))
        problem.pi = every
        problem.grad = every.copy()
        a, b = run(gpu, problem), run(Cpu(), problem)
        nan = np.isnan(b.grad.astype(np.float32))
        assert np.array_equal(np.isnan(a.grad.astype(np.float32)), nan)
        assert_same_bits(a.grad[~nan], b.grad[~nan])
