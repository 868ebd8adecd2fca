"""Members of the family beyond the plain step, on every kernel, against their float64 reference."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import qpi_distill as qpi
from backends import DTYPES
from reference.family import critics, divergences, summary, targets

pytest.importorskip("ml_dtypes")

DIVERGENCES = {
    "forward_kl": divergences.forward_kl,
    "reverse_kl": divergences.reverse_kl,
    "jensen_shannon": divergences.jensen_shannon,
    "hellinger": divergences.hellinger,
    "total_variation": divergences.total_variation,
}
SUMMARY = ("target_entropy", "policy_entropy", "uniform_entropy", "pi_at_qstar", "overlap")
LAM, TAU, BETA = 0.5, 0.75, 0.25  # exact in float32


class Batch:
    """Random arrays, and what the reference says of them."""

    def __init__(self, seed, rows, actions, atoms, critic="categorical", dtype="float32", size=2.0, **options):
        rng = np.random.default_rng(seed)
        shape = (rows, actions) if critic == "scalar" else (rows, actions, atoms)
        self.q = (size * rng.standard_normal(shape)).astype(DTYPES[dtype])
        self.pi = (size * rng.standard_normal((rows, actions))).astype(DTYPES[dtype])
        self.support = np.linspace(-10, 10, atoms, dtype=np.float32) if critic == "categorical" else None
        self.legal = rng.random((rows, actions)) > 0.25
        self.legal[np.arange(rows), rng.integers(0, actions, rows)] = True
        self.weights = rng.random(rows, dtype=np.float32)
        self.critic, self.actions, self.options = critic, actions, options
        self.atoms = None if critic == "scalar" else atoms

    def values(self):
        q = self.q.astype(np.float64)
        if self.critic == "categorical":
            return critics.categorical(q, self.support.astype(np.float64))
        return critics.quantile(q) if self.critic == "quantile" else critics.scalar(q)

    def log_target(self):
        if self.options.get("target") == "greedy":
            return targets.eps_soft(self.values(), float(np.float32(self.options.get("epsilon", 0.0))), self.legal)
        return targets.boltzmann(self.values(), TAU, self.legal)

    def divergence(self):
        name = self.options.get("divergence", "forward_kl")
        extra = {"beta": BETA} if name == "jensen_shannon" else {}
        temperature = self.options.get("policy_temperature", 1.0)
        return DIVERGENCES[name](
            self.pi.astype(np.float64), self.log_target(), temperature=temperature, legal=self.legal, **extra
        )

    def log_policy(self):
        return divergences.log_policy(self.pi.astype(np.float64), 1.0, self.legal)

    def run(self, backend, kernel="auto"):
        """Accumulate once: the gradient, and the record's sums and summary."""
        isv = qpi.ISV(device=backend.device, lam=LAM, tau=TAU)
        op = qpi.Distiller(
            isv=isv,
            actions=self.actions,
            atoms=self.atoms,
            support=self.support,
            critic=self.critic,
            reduction="sum",
            value_scale="none",
            beta=BETA,
            summary=True,
            kernel=kernel,
            **self.options,
        )
        grad = backend.put(np.zeros(self.pi.shape, np.float32))
        q, pi, legal, weights = (backend.put(x) for x in (self.q, self.pi, self.legal, self.weights))
        op.accumulate(q, pi, grad, legal_actions=legal, row_weights=weights, stream=backend.stream)
        return backend.get(grad), backend.record(isv), isv, op


def check(batch, grad, record, tolerance=1.0):
    """Compare with the reference. Values of up to 10 differ by a few ulp, which tau makes a few 1e-6 of a logit."""
    w = batch.weights.astype(np.float64)
    loss = batch.divergence()
    np.testing.assert_allclose(grad, LAM * w[:, None] * loss.gradient, rtol=0, atol=3e-6 * tolerance)
    rows = summary.rows(batch.log_target(), batch.log_policy())
    fed = loss.value if batch.options.get("control_stat") == "loss" else rows.kl
    mean = record.weighted_kl / record.weight
    np.testing.assert_allclose(mean, (w * np.minimum(fed, 100)).sum() / w.sum(), rtol=1e-5, atol=2e-6 * tolerance)
    sums = record.summary
    np.testing.assert_allclose(sums.weight, w.sum(), rtol=1e-12)
    np.testing.assert_allclose(sums.loss / sums.weight, (w * loss.value).sum() / w.sum(), rtol=1e-5, atol=2e-6)
    for name in SUMMARY:
        expected = (w * getattr(rows, name)).sum() / w.sum()
        np.testing.assert_allclose(getattr(sums, name) / sums.weight, expected, rtol=1e-5, atol=3e-6 * tolerance)
    # Two best actions may be closer than float32 can tell apart.
    assert abs(sums.agreement / sums.weight - (w * rows.top1_match).sum() / w.sum()) <= 2 * w.max() / w.sum()


def members():
    for critic, (target, epsilon), divergence, temperature in itertools.product(
        ("categorical", "quantile", "scalar"),
        (("boltzmann", 0.0), ("greedy", 0.0), ("greedy", 0.125)),
        DIVERGENCES,
        (1.0, 2.5),
    ):
        if not (divergence == "reverse_kl" and (target, epsilon) == ("greedy", 0.0)):
            yield (
                critic,
                {
                    "target": target,
                    "epsilon": epsilon,
                    "divergence": divergence,
                    "policy_temperature": temperature,
                    "control_stat": "loss" if temperature > 1 else "kl",
                },
            )


class TestEveryMember:
    @pytest.mark.parametrize(("critic", "options"), list(members()), ids=str)
    def test_against_the_reference(self, backend, critic, options):
        batch = Batch(1, 70, 11, 21, critic, **options)
        if options["target"] == "greedy" and options["epsilon"] == 0.0:
            batch.legal[:] = True  # with one action of 12 illegal or not, KL(t || p) is finite all the same
        check(batch, *batch.run(backend)[:2])

    @pytest.mark.parametrize("divergence", DIVERGENCES)
    @pytest.mark.parametrize(
        ("rows", "actions", "atoms"), [(1, 1, 1), (33, 2, 5), (65, 4, 51), (9, 40, 5), (21, 3, 200), (5, 129, 33)]
    )
    def test_shapes(self, backend, rows, actions, atoms, divergence):
        for critic in ("categorical", "quantile"):
            batch = Batch(rows, rows, actions, atoms, critic, divergence=divergence)
            check(batch, *batch.run(backend)[:2], tolerance=2)

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    @pytest.mark.parametrize("critic", ["categorical", "quantile", "scalar"])
    def test_half_precision_logits(self, backend, critic, dtype):
        batch = Batch(3, 50, 7, 33, critic, dtype, divergence="jensen_shannon")
        check(batch, *batch.run(backend)[:2])

    @pytest.mark.parametrize("divergence", ["reverse_kl", "hellinger"])
    @pytest.mark.parametrize(("actions", "atoms"), [(11, 21), (40, 5), (3, 200)])
    def test_every_kernel_agrees(self, backend, actions, atoms, divergence):
        """To the bit on a GPU and between instruction sets."""
        batch = Batch(5, 200, actions, atoms, divergence=divergence)
        outcomes = [batch.run(backend, kernel)[:2] for kernel in backend.kernels if kernel != "block"]
        for grad, record in outcomes[1:]:
            np.testing.assert_array_equal(grad, outcomes[0][0])
            assert bytes(record) == bytes(outcomes[0][1])

    def test_the_plain_step_with_a_summary_is_the_plain_step(self, backend):
        batch = Batch(7, 300, 11, 21)
        grad, record, *_ = batch.run(backend)
        isv = qpi.ISV(device=backend.device, lam=LAM, tau=TAU)
        op = qpi.Distiller(isv=isv, actions=11, support=batch.support, reduction="sum", value_scale="none")
        plain = backend.put(np.zeros_like(grad))
        q, pi, legal, weights = (backend.put(x) for x in (batch.q, batch.pi, batch.legal, batch.weights))
        op.accumulate(q, pi, plain, legal_actions=legal, row_weights=weights, stream=backend.stream)
        np.testing.assert_allclose(backend.get(plain), grad, rtol=0, atol=2e-7)
        np.testing.assert_allclose(backend.record(isv).weighted_kl, record.weighted_kl, rtol=1e-6)


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 40),
    actions=st.integers(1, 40),
    atoms=st.integers(1, 150),
    critic=st.sampled_from(("categorical", "quantile", "scalar")),
    divergence=st.sampled_from(tuple(DIVERGENCES)),
    size=st.sampled_from((0.01, 1.0, 4.0)),
    temperature=st.sampled_from((0.5, 1.0, 8.0)),
)
def test_random_members(seed, rows, actions, atoms, critic, divergence, size, temperature):
    import backends

    batch = Batch(seed, rows, actions, atoms, critic, size=size, divergence=divergence, policy_temperature=temperature)
    check(batch, *batch.run(backends.Cpu())[:2], tolerance=8)


class TestRows:
    def test_a_bad_quantile_leaves_its_row_out(self, backend):
        batch = Batch(9, 6, 3, 4, "quantile", divergence="hellinger")
        batch.legal[:] = True
        batch.q[1, 0, 2], batch.q[3, 2, 0], batch.pi[4, 1] = np.nan, np.inf, np.nan
        grad, record, *_ = batch.run(backend)
        assert record.skipped == 3
        assert not grad[[1, 3, 4]].any()
        good = [0, 2, 5]
        for name in ("q", "pi", "legal", "weights"):
            setattr(batch, name, getattr(batch, name)[good])
        check(batch, grad[good], record)

    def test_ties_share_the_greedy_target(self, backend):
        batch = Batch(11, 4, 5, 1, "scalar", target="greedy", epsilon=0.0)
        batch.legal[:] = True
        batch.q[:] = [1, 3, 3, 2, 3]
        grad, record, *_ = batch.run(backend)
        check(batch, grad, record)
        third = LAM * batch.weights[:, None] * (np.exp(batch.log_policy()) - np.array([0, 1 / 3, 1 / 3, 0, 1 / 3]))
        np.testing.assert_allclose(grad, third, atol=1e-6)


class TestState:
    def test_commit_moves_the_slots_and_the_law_of_tau(self, backend):
        batch = Batch(13, 128, 6, 1, "scalar", divergence="jensen_shannon")
        _, record, isv, op = batch.run(backend)
        isv.set(tau_law="target_entropy", entropy_goal=0.2, entropy_rate=0.05, stream=backend.stream)
        op.commit(stream=backend.stream)
        values = isv.read(stream=backend.stream)
        sums = record.summary
        for name in (*SUMMARY, "agreement"):
            np.testing.assert_allclose(values[name], getattr(sums, name) / sums.weight, rtol=1e-6)
        np.testing.assert_allclose(values["loss_last"], sums.loss / sums.weight, rtol=1e-6)
        assert values["tau"] < TAU  # the target was too soft
        assert bytes(backend.record(isv)) == bytes(len(bytes(record)))

    def test_measure_returns_it(self, backend):
        batch = Batch(15, 20, 6, 9, "quantile")
        _, record, _, op = batch.run(backend)
        arrays = (backend.put(batch.q), backend.put(batch.pi))
        statistic = op.measure(
            *arrays, legal_actions=backend.put(batch.legal), row_weights=backend.put(batch.weights),
            stream=backend.stream,
        )  # fmt: skip
        np.testing.assert_allclose(statistic.loss, record.summary.loss / record.summary.weight, rtol=1e-12)
        np.testing.assert_allclose(statistic.kl, record.weighted_kl / record.weight, rtol=1e-12)

    def test_a_commit_without_a_summary_keeps_the_last(self, backend):
        batch = Batch(17, 30, 6, 1, "scalar")
        *_, isv, op = batch.run(backend)
        op.commit(stream=backend.stream)
        before = isv.read(stream=backend.stream)["policy_entropy"]
        plain = qpi.Distiller(isv=isv, actions=6, support=np.linspace(-1, 1, 3), reduction="sum")
        rng = np.random.default_rng(0)
        q, pi = (rng.standard_normal(shape).astype(np.float32) for shape in ((30, 6, 3), (30, 6)))
        grad = backend.put(np.zeros((30, 6), np.float32))
        plain.step(backend.put(q), backend.put(pi), grad, stream=backend.stream)
        values = isv.read(stream=backend.stream)
        assert values["policy_entropy"] == before
        assert values["observations"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critic": "distributional"}, "critic: 'distributional' is not one of"),
        ({"target": "argmax"}, "target: 'argmax' is not one of"),
        ({"divergence": "kl"}, "divergence: 'kl' is not one of"),
        ({"target": "greedy", "epsilon": 1.5}, "target_epsilon is 1.5; expected 0 to 1"),
        ({"epsilon": 0.1}, "target_epsilon is 0.1, but target is not QPI_TARGET_GREEDY"),
        ({"beta": 0.0}, "divergence_beta is 0; expected a number between 0 and 1"),
        ({"beta": float("nan")}, "divergence_beta is nan"),
        ({"policy_temperature": 0.0}, "policy_temperature is 0"),
        ({"target": "greedy", "divergence": "reverse_kl"}, "infinite where the target is 0"),
        ({"critic": "quantile"}, "support: a quantile critic has none"),
        ({"critic": "quantile", "support": None}, "atoms: required by a quantile critic"),
        ({"critic": "scalar", "support": None, "atoms": 3}, "atoms: 3, but a scalar critic has none"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(options, message):
    arguments = {"support": np.linspace(-1, 1, 5), "actions": 3, "reduction": "mean", **options}
    with pytest.raises(ValueError, match=message):
        qpi.Distiller(isv=qpi.ISV(device="cpu"), **arguments)
