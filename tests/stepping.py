"""One batch through the library and through the reference, and the comparison of the two."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.testing import assert_array_equal

import qpi_distill as qpi
from backends import DTYPES, CRecord
from reference import Fault, Loop, Options, Reason, Record, Rows
from reference.rows import wide
from reference.tolerance import gradient_tolerance, kl_tolerance, one_ulp, variance_tolerance

COUNTERS = ("observations", "value_observations")


@dataclass
class Problem:
    """A batch, the options of its plan, and the state vector before it."""

    q: np.ndarray  # [..., A, Z]
    pi: np.ndarray  # [..., A]
    support: np.ndarray  # [Z] or [A, Z], float32
    grad: np.ndarray  # [..., A]
    legal: np.ndarray | None = None  # [..., A]
    weights: np.ndarray | None = None  # [...], float32
    grad_scale: float | None = None
    options: Options = field(default_factory=Options)
    state: dict = field(default_factory=dict)

    @property
    def flat(self) -> Problem:
        """The same batch as rows."""
        actions, atoms = self.q.shape[-2:]
        return replace(
            self,
            q=self.q.reshape(-1, actions, atoms),
            pi=self.pi.reshape(-1, actions),
            grad=self.grad.reshape(-1, actions),
            legal=None if self.legal is None else self.legal.reshape(-1, actions),
            weights=None if self.weights is None else self.weights.reshape(-1),
        )


@dataclass
class Outcome:
    """What the library made of a problem."""

    grad: np.ndarray
    record: CRecord | None
    values: object  # ISVValues


def random_problem(
    rng: np.random.Generator,
    rows=7,
    actions=5,
    atoms=9,
    *,
    dtypes=("float32", "float32", "float32"),
    per_action=False,
    masked=False,
    weighted=False,
    grad_scale=None,
    q_size=2.0,
    pi_size=2.0,
    span=(-10.0, 10.0),
    state=(),
    **options,
) -> Problem:
    """A well-behaved batch with the shapes and choices asked for."""
    lead = rows if isinstance(rows, tuple) else (rows,)
    q_dtype, pi_dtype, grad_dtype = (DTYPES[name] for name in dtypes)
    support = np.linspace(*span, atoms, dtype=np.float32)
    if per_action:
        support = np.sort(rng.uniform(*span, (actions, atoms)), axis=-1).astype(np.float32)
    legal = weights = None
    if masked:
        legal = rng.random((*lead, actions)) < 0.7
        legal[..., rng.integers(actions)] = True
    if weighted:
        weights = (rng.random(lead) * 2).astype(np.float32)
        weights[rng.random(lead) < 0.15] = 0
    return Problem(
        q=(rng.normal(size=(*lead, actions, atoms)) * q_size).astype(q_dtype),
        pi=(rng.normal(size=(*lead, actions)) * pi_size).astype(pi_dtype),
        support=support,
        grad=rng.normal(size=(*lead, actions)).astype(grad_dtype),
        legal=legal,
        weights=weights,
        grad_scale=grad_scale,
        options=Options(**{"reduction": "sum", "mode": "add", "value_scale": "none", "kl_stat": "mean", **options}),
        state=dict(state),
    )


SLOT_DTYPES = {s.name: {"f32": np.float32, "u32": np.uint32, "u64": np.uint64}[s.type] for s in qpi.ISV.slot_info()}


# ---- the library --------------------------------------------------------------------------------------------------


def poke(backend, isv, **values) -> None:
    """Write slots behind the library's back, whatever they hold."""
    for name, value in values.items():
        backend.poke(isv.slot_address(name), np.array(value, SLOT_DTYPES[name]).tobytes())


def observe(backend, isv, kl, *, rows=1, **slots) -> None:
    """Commit a batch of this mean KL, with two rows skipped and one clipped, after writing slots."""
    poke(backend, isv, **slots)
    sums = np.array([kl * rows, rows, 0.0], np.float64)
    backend.poke(isv.record, sums.tobytes() + np.array([rows, 2, 1], np.int64).tobytes())
    isv.commit(stream=backend.stream)


def make_isv(backend, state=(), layout="native"):
    isv = qpi.ISV(device=backend.device, layout=layout)
    poke(backend, isv, **dict(state))
    return isv


def distiller(isv, problem: Problem, *, support=None, **choices):
    o = problem.options
    return qpi.Distiller(
        support=problem.support if support is None else support,
        actions=problem.q.shape[-2],
        atoms=problem.q.shape[-1],
        isv=isv,
        reduction=o.reduction,
        mode=o.mode,
        value_scale=o.value_scale,
        kl_stat=o.kl_stat,
        illegal_below=None if o.illegal_below == -np.inf else o.illegal_below,
        q_dtype=problem.q.dtype.name,
        pi_dtype=problem.pi.dtype.name,
        grad_dtype=problem.grad.dtype.name,
        **choices,
    )


def arguments(backend, problem: Problem):
    """The arrays of a problem on the backend: positional and keyword arguments of a step."""
    scale = problem.grad_scale
    positional = [backend.put(x) for x in (problem.q, problem.pi, problem.grad)]
    keywords = {
        "legal_actions": backend.put(problem.legal),
        "row_weights": backend.put(problem.weights),
        "grad_scale": None if scale is None else backend.put(np.array([scale], np.float32)),
        "stream": backend.stream,
    }
    return positional, keywords


def run(backend, problem: Problem, *, isv=None, call="accumulate", layout="native", **choices) -> Outcome:
    """Run one batch. ``accumulate`` is followed by a look at the record and a commit."""
    isv = make_isv(backend, problem.state, layout) if isv is None else isv
    if not np.isfinite(problem.support).all():  # refused on the host; in the device's memory it can happen
        choices["support"] = backend.pointer(problem.support)
    op = distiller(isv, problem, **choices)
    positional, keywords = arguments(backend, replace(problem, grad=problem.grad.copy(order="K")))
    getattr(op, call)(*positional, **keywords)
    record = None
    if call == "accumulate":
        record = backend.record(isv)
        isv.commit(stream=backend.stream)
    return Outcome(backend.get(positional[2]), record, isv.read(stream=backend.stream, check=False))


def faults_of(values) -> int:
    """Fault names of a read as bits."""
    bits = Fault(0)
    for name in values.faults:
        bits |= Fault[name.upper()]
    return int(bits)


def reason_of(values) -> Reason:
    return Reason[values.reason.upper()]


# ---- the reference ------------------------------------------------------------------------------------------------


def model(problem: Problem, loop: Loop | None = None) -> tuple[np.ndarray, Rows, Loop, Loop]:
    """Gradient, rows, and the loop before and after the commit."""
    if loop is None:
        state = dict(problem.state)
        counters = {name: state.pop(name) for name in COUNTERS if name in state}
        loop = Loop(**counters).set(**state)
    else:
        loop = loop.copy()
    p = problem.flat
    grad, rows = loop.accumulate(
        p.q,
        p.pi,
        p.support,
        p.grad,
        p.options,
        legal_actions=p.legal,
        row_weights=p.weights,
        grad_scale=p.grad_scale,
    )
    after = loop.copy()
    after.commit()
    return grad, rows, loop, after


# ---- comparison ---------------------------------------------------------------------------------------------------


def bits(array: np.ndarray) -> np.ndarray:
    """An array as unsigned integers: equal means the same bits, NaN and the sign of zero included."""
    return np.ascontiguousarray(array).view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[array.itemsize])


def assert_same_bits(got, want, message="") -> None:
    assert got.dtype == want.dtype
    assert_array_equal(bits(got), bits(want), err_msg=message)


def frozen(values) -> dict:
    """Every slot of a read, to the last bit, in a form that compares."""
    return {name: np.float64(value).tobytes() for name, value in values.raw.items()}


def assert_same_state(got: dict, want: dict) -> None:
    """Two state dictionaries are equal."""
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert_array_equal(got[name], value, err_msg=name)


def record_bytes(record: CRecord) -> bytes:
    return ctypes.string_at(ctypes.addressof(record), CRecord.calls.offset)


def check_gradient(got: np.ndarray, problem: Problem) -> None:
    """A gradient buffer against the reference: close where there is a gradient, the same bits where there is none."""
    want, rows, loop, _ = model(problem)
    p = problem.flat
    got = got.reshape(p.grad.shape)
    if loop.state_faults(p.options):
        return assert_same_bits(got, p.grad, "a fault forbids any gradient")
    moved = rows.written[:, None] & rows.legal
    if loop["lam"] == 0 or (p.grad_scale is not None and not np.isfinite(np.float32(p.grad_scale))):
        moved[:] = False
    if p.options.mode == "add":
        assert_same_bits(got[~moved], p.grad[~moved], "no gradient, and yet the buffer changed")
    else:
        assert not got[~moved].astype(np.float64).any(), "write mode leaves 0 where there is no gradient"
    before = p.grad if p.options.mode == "add" else np.zeros_like(p.grad)
    bound = gradient_tolerance(rows, loop, p.options, p.support, before, p.grad_scale) + one_ulp(want, got.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        fits = wide(got) - want
        rounded = wide(want.astype(np.float32).astype(got.dtype))
        good = (np.abs(fits) <= bound) | (wide(got) == rounded) | (np.isnan(want) & np.isnan(rounded))
    bad = moved & ~good
    assert not bad.any(), describe(bad, got, want, bound)
    return None


def describe(bad, got, want, bound) -> str:
    b, a = np.argwhere(bad)[0]
    error = float(got[b, a]) - want[b, a]
    where = f"{bad.sum()} wrong; row {b} action {a}"
    return f"{where}: got {got[b, a]!r}, want {want[b, a]!r}, off by {error} of {bound[b, a]}"


def check_record(got: CRecord, problem: Problem) -> None:
    """A record against the reference: counts to the letter, sums within what the rows allow."""
    _, rows, loop, _ = model(problem)
    p, want = problem.flat, loop.record
    w = np.where(rows.counted, rows.weight, 0)
    assert (got.rows, got.skipped, got.faults) == (want.rows, want.skipped, want.faults)
    if loop.state_faults(p.options):
        assert got.weight == got.weighted_kl == got.weighted_variance == got.clipped == 0
        return
    # A KL that float32 cannot tell from the bound may be clipped or not; one that is clipped has no error left.
    limit = float(loop["kl_row_max"])
    error = kl_tolerance(rows, loop, p.options, p.support)
    surely = rows.written & (rows.raw_kl - error > limit)
    perhaps = rows.written & (rows.raw_kl + error > limit)
    assert surely.sum() <= got.clipped <= perhaps.sum()
    assert abs(got.weight - want.weight) <= 1e-12 * want.weight
    kl_bound = (w * np.where(surely, 1e-12 * limit, error)).sum()
    assert abs(got.weighted_kl - want.weighted_kl) <= kl_bound, (got.weighted_kl, want.weighted_kl, kl_bound)
    variance_bound = (w * variance_tolerance(rows, p.support)).sum()
    with np.errstate(over="ignore"):
        beyond = not np.isfinite(np.float32(rows.variance)).all()  # the variance of a row is a float32
    if beyond:
        assert not np.isfinite(got.weighted_variance)
    else:
        assert abs(got.weighted_variance - want.weighted_variance) <= variance_bound
    assert got.weighted_kl >= 0


def check_state(values, problem: Problem, record: CRecord) -> None:
    """The state vector after a commit, given the library's own record (so that the rows' rounding does not matter)."""
    _, _, loop, _ = model(problem)
    loop.record = Record(
        record.weighted_kl,
        record.weight,
        record.weighted_variance,
        record.rows,
        record.skipped,
        record.clipped,
        record.faults,
    )
    loop.commit()
    check_values(values, loop)


def check_values(values, loop: Loop) -> None:
    for name in ("lam", "tau", "kl_ema", "kl_last", "value_std"):
        want = np.float32(loop.kl_last if name == "kl_last" else loop[name])
        got = np.float32(getattr(values, name))
        allowed = 2 * np.spacing(abs(want)) if name in ("kl_ema", "value_std") else 0
        assert got == want or abs(got - want) <= allowed or (np.isnan(got) and np.isnan(want)), (name, got, want)
    for name in (
        *COUNTERS,
        "rows_last",
        "skipped_last",
        "clipped_last",
        "skipped_rows",
        "clipped_rows",
    ):
        assert getattr(values, name) == getattr(loop, name), name
    assert faults_of(values) == loop.faults
    assert reason_of(values) == loop.reason


def check(outcome: Outcome, problem: Problem) -> None:
    """Gradient, record and state vector."""
    check_gradient(outcome.grad, problem)
    if outcome.record is not None:
        check_record(outcome.record, problem)
        check_state(outcome.values, problem, outcome.record)
