"""Members of the family on every kernel that serves them: a small subset, for compute-sanitizer too."""

import numpy as np
import pytest

from families import DIVERGENCES, Batch, check

pytest.importorskip("ml_dtypes")

CRITICS = ("categorical", "quantile", "scalar")
SHAPES = ((9, 11, 21), (67, 3, 150), (5, 40, 5), (33, 4, 51), (130, 3, 2))
DTYPES = ("float32", "float16", "bfloat16")

# Neighbours in the lists meet in some case; shapes and dtypes take turns.
MEMBERS = [
    (critic, divergence, SHAPES[(i + k) % len(SHAPES)], DTYPES[(i + k) % len(DTYPES)], 1.0 if (i + k) % 2 else 2.5)
    for i, critic in enumerate(CRITICS)
    for k, divergence in enumerate(DIVERGENCES)
]


@pytest.mark.sanitizer
@pytest.mark.parametrize("kernel", ["stream", "tile"])
@pytest.mark.parametrize(("critic", "divergence", "shape", "dtype", "temperature"), MEMBERS)
def test_small_members(gpu, critic, divergence, shape, dtype, temperature, kernel):
    batch = Batch(2, *shape, critic, dtype, divergence=divergence, policy_temperature=temperature)
    grad, record, *_ = batch.run(gpu, kernel)
    check(batch, grad, record, tolerance=2)
    plain, plain_record, *_ = batch.run(gpu, "stream")
    np.testing.assert_array_equal(grad, plain)
    assert bytes(record) == bytes(plain_record)


@pytest.mark.sanitizer
@pytest.mark.parametrize("kernel", ["stream", "tile"])
@pytest.mark.parametrize("epsilon", [0.0, 0.125])
def test_small_greedy_targets(gpu, kernel, epsilon):
    batch = Batch(3, 40, 5, 9, target="greedy", epsilon=epsilon)
    check(batch, *batch.run(gpu, kernel)[:2], tolerance=2)
