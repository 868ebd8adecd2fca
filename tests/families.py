"""Batches of the family: through the library, and compared with the float64 reference."""

import numpy as np

import qpi_distill as qpi
from backends import DTYPES
from reference.family import critics, divergences, summary, targets

DIVERGENCES = {
    "forward_kl": divergences.forward_kl,
    "reverse_kl": divergences.reverse_kl,
    "jensen_shannon": divergences.jensen_shannon,
    "hellinger": divergences.hellinger,
    "total_variation": divergences.total_variation,
}
SUMMARY = ("target_entropy", "policy_entropy", "uniform_entropy", "pi_at_qstar", "overlap")
BIG = np.finfo(np.float32).max
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
