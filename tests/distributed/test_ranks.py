"""Several processes do what one would: the same statistic, the same lam, the same bits on all of them."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from shards import COMMITS, KINDS, LONG, STATE, batches, part, shards, small_batch

import backends
import qpi_distill as qpi
from reference import Fault
from stepping import arguments, distiller, make_isv, model

pytestmark = pytest.mark.xdist_group("ranks")

CASES = [(kind, value_scale) for kind in KINDS for value_scale in ("none", "running_std")]


def over_ranks(job, name):
    return [rank[name] for rank in job]


def as_float(slots, name):
    return slots[..., layout_at(name)].view(np.float32)


def layout_at(name):
    return qpi.Layout.native()[name]


@pytest.mark.parametrize("case", [*(f"{kind}-{scale}" for kind, scale in CASES), "averaged", "long", "faults"])
def test_every_slot_is_the_same_bits_on_every_rank_after_every_commit(job, case):
    first, *others = over_ranks(job, f"{case}/slots")
    for other in others:
        assert_array_equal(other, first)


@pytest.mark.parametrize(("kind", "value_scale"), CASES)
def test_one_process_that_accumulates_the_shards_in_turn_has_the_same_bits(job, kind, value_scale):
    cpu = backends.make("cpu")
    isv = make_isv(cpu, STATE)
    for step, problem in enumerate(batches(kind, len(job), value_scale)):
        for at in shards(kind, len(job)):
            mine = part(problem, at)
            positional, keywords = arguments(cpu, mine)
            distiller(isv, mine).accumulate(*positional, **keywords)
        isv.commit()
        assert_array_equal(job[0][f"{kind}-{value_scale}/slots"][step], isv.slots.view(np.uint32))


@pytest.mark.parametrize(("kind", "value_scale"), CASES)
def test_one_process_with_all_the_rows_has_the_same_statistic_and_lam(job, kind, value_scale):
    """And so has the reference in float64."""
    cpu = backends.make("cpu")
    isv = make_isv(cpu, STATE)
    found = job[0][f"{kind}-{value_scale}/slots"]
    lams, loop = [], None
    for step, problem in enumerate(batches(kind, len(job), value_scale)):
        positional, keywords = arguments(cpu, part(problem, slice(None)))
        distiller(isv, problem).accumulate(*positional, **keywords)
        isv.commit()
        want = isv.read()
        _, _, _, loop = model(problem, loop)
        for name in ("kl_last", "kl_ema", "value_std"):
            assert_allclose(as_float(found[step], name), want[name], rtol=1e-6)
        assert_allclose(as_float(found[step], "kl_last"), loop.kl_last, rtol=2e-6)
        assert as_float(found[step], "lam") == np.float32(want.lam) == np.float32(loop["lam"])
        for name in ("rows_last", "skipped_last", "clipped_last", "observations"):
            assert found[step][layout_at(name)] == want[name], name
        lams.append(want.lam)
    assert len(set(lams)) > 2, "lam moves, or equal lams would show nothing"
    assert (found[:, layout_at("skipped_last")] > 0).all() == (kind == "skipped")


@pytest.mark.parametrize("case", [*(f"{kind}-{scale}" for kind, scale in CASES), "averaged"])
def test_gradients_are_those_of_the_mean_over_all_rows(job, case):
    kind, value_scale = ("uneven", "none") if case == "averaged" else case.split("-")
    cpu = backends.make("cpu")
    isv = make_isv(cpu, STATE)
    for step, problem in enumerate(batches(kind, len(job), value_scale)):
        whole = part(problem, slice(None))
        whole.grad[:] = 0
        # The normaliser of the ranks is over all the weights, those of skipped rows too.
        whole.grad_scale = 1 / whole.weights.sum(dtype=np.float64)
        positional, keywords = arguments(cpu, whole)
        distiller(isv, whole).accumulate(*positional, **keywords)
        isv.commit()
        shares = [rank[f"{case}/grad"][step] for rank in job]
        assert [len(share) for share in shares] == [at.stop - at.start for at in shards(kind, len(job))]
        together = np.concatenate(shares)
        if case == "averaged":  # over the ranks, of which one alone has each row
            together = together / np.float32(len(job))
        assert np.abs(together).max() > 0
        assert_allclose(together, whole.grad, rtol=1e-5, atol=1e-7)


def test_thousands_of_commits_are_those_of_one_process(job):
    isv = qpi.ISV(device="cpu", **LONG)
    op = qpi.Distiller(actions=3, support=qpi.linspace(-1, 1, 5), isv=isv, reduction="mean", summary=True)
    found = job[-1]["long/slots"]
    rows = 0
    for step in range(COMMITS):
        for rank in range(len(job)):
            q, pi = small_batch(step, rank)
            if len(pi):
                op.accumulate(q, pi, np.zeros_like(pi))
            rows += len(pi)
        isv.commit()
        assert_array_equal(found[step], isv.slots.view(np.uint32), err_msg=f"step {step}")
    values = isv.read()
    assert values.commits == COMMITS
    assert COMMITS / 2 < values.observations <= COMMITS
    lams = as_float(found, "lam")
    assert (np.diff(lams) > 0).any()
    assert (np.diff(lams) < 0).any()
    assert len(np.unique(as_float(found, "tau"))) > COMMITS / 2


def test_faults_are_united(job):
    for rank in job:
        assert rank["faults/faults"] == Fault.GRAD_SCALE | Fault.WEIGHT
        assert rank["faults/calls"] == len(job)
        assert rank["faults/skipped"] == len(job) - 1


def test_counts_are_integers(job):
    size, odd = len(job), 2**53 + 1
    want = [size * odd, sum(odd + 2 * rank for rank in range(size)), size]
    for rank in job:
        assert rank["counts/counts"].tolist() == want


def test_a_record_that_was_begun_stays_the_ranks_own_until_it_is_shared(job):
    for rank in job:
        assert (rank["begun/kept"], rank["begun/together"], rank["begun/observations"]) == (5, 5 * len(job), 0)


def test_ranks_with_other_values_are_told_by_name(job):
    for rank in job:
        message = str(rank["strangers/message"])
        assert message.startswith("isv: rank 1 has another lam, kl_target than rank 0")
        assert "rank 1 has another tau than rank 0" in str(rank["strangers/later"])
