"""Several devices: one statistic, and the same state on each of them. On the CPU these are two devices of one host."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import qpi_distill as qpi

jax = pytest.importorskip("jax")

from jax_cases import record_of  # noqa: E402

import qpi_distill.jax as qpj  # noqa: E402

P = jax.sharding.PartitionSpec
SUPPORT = qpi.linspace(-2, 2, 9)
ROWS = 64
SLOTS = ("lam", "tau", "kl_ema", "kl_last", "value_std")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu2)])
def devices(request):
    try:
        found = jax.devices(request.param)
    except RuntimeError as error:
        pytest.skip(f"this JAX has no {request.param}: {error}")
    if len(found) < 2:
        pytest.skip("this JAX was started with one device before these tests")
    with jax.default_device(found[0]):
        yield found[:2]


@pytest.fixture
def mesh(devices):
    return jax.sharding.Mesh(np.array(devices), ("data",))


def batch(seed=0, weights=None):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(ROWS, 5, 9)).astype(np.float32)
    pi = rng.normal(size=(ROWS, 5)).astype(np.float32)
    return pi, q, np.ones(ROWS, np.float32) if weights is None else weights


def uneven(empty=False):
    """Weights that leave the second device with few rows or none."""
    weights = np.random.default_rng(9).random(ROWS).astype(np.float32)
    weights[ROWS // 2 if empty else ROWS // 2 + 3 :] = 0
    return weights


def step(state, pi, q, weights, axis_name=None):
    """A loss over all rows, its gradient, and the state after a commit."""

    def loss(pi):
        value, record = qpj.distill_loss(pi, q, SUPPORT, state, reduction="sum", row_weights=weights)
        return value, record

    (_, record), gradient = jax.value_and_grad(loss, has_aux=True)(pi)
    return gradient, qpj.commit(qpj.accumulate(state, record), axis_name=axis_name)


def assert_same_statistic(got, want):
    got, want = qpj.read_state(got), qpj.read_state(want)
    for name in SLOTS:
        assert got[name] == pytest.approx(want[name], rel=1e-6), name
    assert [got[name] for name in ("rows_last", "skipped_last", "reason", "commits")] == [
        want[name] for name in ("rows_last", "skipped_last", "reason", "commits")
    ]


@pytest.mark.parametrize("weights", [None, uneven(), uneven(empty=True)], ids=["even", "uneven", "empty"])
def test_shard_map_has_the_statistic_of_one_device(mesh, weights):
    sharded = jax.jit(
        jax.shard_map(
            lambda state, pi, q, weights: step(state, pi, q, weights, "data"),
            mesh=mesh,
            in_specs=(P(), P("data"), P("data"), P("data")),
            out_specs=(P("data"), P()),
        )
    )
    state = alone = qpj.init_state(lam=0.3, kl_target=1e-3)
    for seed in range(3):
        arrays = batch(seed, weights)
        want, alone = step(alone, *arrays)
        got, state = sharded(state, *arrays)
        assert_allclose(got, want, rtol=0, atol=1e-6)
        assert_same_statistic(state, alone)
        copies = [np.asarray(shard.data) for shard in state.slots.addressable_shards]
        assert len(copies) == 2
        assert_array_equal(copies[0], copies[1])
    assert qpj.read_state(state).lam > 0.3


def test_pmap_has_the_statistic_of_one_device(devices):
    pi, q, weights = batch(4, uneven())
    state = qpj.init_state(lam=0.3, kl_target=1e-3)
    want, alone = step(state, pi, q, weights)
    parts = [array.reshape(2, ROWS // 2, *array.shape[1:]) for array in (pi, q, weights)]
    mapped = jax.pmap(
        lambda *arguments: step(*arguments, "data"), axis_name="data", in_axes=(None, 0, 0, 0), devices=devices
    )
    got, states = mapped(state, *parts)
    assert_allclose(np.asarray(got).reshape(want.shape), want, rtol=0, atol=1e-6)
    assert_array_equal(states.slots[0], states.slots[1])
    assert_same_statistic(jax.tree.map(lambda leaf: leaf[0], states), alone)


def test_distill_grad_under_shard_map_takes_the_global_normaliser_by_grad_scale(mesh):
    pi, q, weights = batch(5, uneven())

    def mean_gradient(state, pi, q, weights, axis_name=None):
        total = weights.sum() if axis_name is None else jax.lax.psum(weights.sum(), axis_name)
        scale = 1 / total
        gradient, state = qpj.distill_grad(
            pi, q, SUPPORT, state, reduction="sum", row_weights=weights, grad_scale=scale
        )
        return gradient, qpj.commit(state, axis_name=axis_name)

    sharded = jax.shard_map(
        lambda *arguments: mean_gradient(*arguments, "data"),
        mesh=mesh,
        in_specs=(P(), P("data"), P("data"), P("data")),
        out_specs=(P("data"), P()),
    )
    state = qpj.init_state()
    want, alone = mean_gradient(state, pi, q, jax.numpy.asarray(weights))
    got, after = jax.jit(sharded)(state, pi, q, weights)
    assert_allclose(got, want, rtol=0, atol=1e-6)
    assert_same_statistic(after, alone)


def test_counts_and_faults_of_all_devices_come_together(mesh):
    pi, q, weights = batch(6)
    pi[3] = np.nan  # on the first device
    weights[ROWS - 1] = -1  # on the second

    def records(state, pi, q, weights):
        _, record = qpj.distill_loss(pi, q, SUPPORT, state, reduction="sum", row_weights=weights)
        return qpj.commit(qpj.accumulate(state, record), axis_name="data"), record[None]

    sharded = jax.shard_map(
        records, mesh=mesh, in_specs=(P(), P("data"), P("data"), P("data")), out_specs=(P(), P("data"))
    )
    state, parts = sharded(qpj.init_state(), pi, q, weights)
    assert [record_of(part).skipped for part in parts] == [1, 1]
    values = qpj.read_state(state, check=False)
    assert (values.rows_last, values.skipped_last, values.faults) == (ROWS - 2, 2, ("weight",))


def test_a_policy_that_every_device_shares_gets_the_sum_of_their_gradients(mesh):
    """What is the same on all devices and meets what is not: its gradient is summed, as that of any function is."""
    _, q, _ = batch(7)
    logits = np.random.default_rng(8).normal(size=5).astype(np.float32)
    state = qpj.init_state()

    def loss(logits, q):
        rows = jax.numpy.broadcast_to(logits, (*q.shape[:1], 5))
        return qpj.distill_loss(rows, q, SUPPORT, state, reduction="sum")[0]

    sharded = jax.shard_map(
        lambda logits, q: jax.grad(loss)(logits, q), mesh=mesh, in_specs=(P(), P("data")), out_specs=P()
    )
    assert_allclose(jax.jit(sharded)(logits, q), jax.grad(loss)(logits, q), rtol=1e-5, atol=1e-6)


def test_a_commit_without_the_axis_is_refused_where_states_would_part(mesh):
    pi, q, weights = batch(8)
    sharded = jax.shard_map(
        step, mesh=mesh, in_specs=(P(), P("data"), P("data"), P("data")), out_specs=(P("data"), P())
    )
    with pytest.raises(ValueError, match="out_specs"):
        sharded(qpj.init_state(), pi, q, weights)


def test_sharded_arrays_without_shard_map_are_right_too(mesh):
    """XLA cannot split the call: it gathers the rows, and every device has the whole statistic."""
    pi, q, weights = batch(9)
    state = qpj.init_state()
    want, alone = step(state, pi, q, weights)
    placed = [jax.device_put(array, jax.sharding.NamedSharding(mesh, P("data"))) for array in (pi, q, weights)]
    state = jax.device_put(state, jax.sharding.NamedSharding(mesh, P()))
    got, after = jax.jit(step)(state, *placed)
    assert_allclose(got, want, rtol=0, atol=1e-6)
    assert_same_statistic(after, alone)
