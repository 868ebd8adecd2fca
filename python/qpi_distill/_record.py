"""The record of a batch as Python sees it, and how records of several batches become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

__all__ = ["CALLS", "COUNTS", "FAULTS", "RECORD", "SUMMARY", "SUMS", "WORDS", "fold"]

SUMMARY = (
    "loss",
    "target_entropy",
    "policy_entropy",
    "uniform_entropy",
    "agreement",
    "pi_at_qstar",
    "overlap",
)
RECORD = np.dtype(
    [
        ("weighted_kl", "<f8"),
        ("weight", "<f8"),
        ("weighted_variance", "<f8"),
        ("rows", "<i8"),
        ("skipped", "<i8"),
        ("clipped", "<i8"),
        ("faults", "<u4"),
        ("calls", "<u4"),
        *((f"summary_{name}", "<f8") for name in ("weight", *SUMMARY)),
    ]
)
"""`qpi_record` of the C header."""

WORDS = RECORD.itemsize // 8
"""Words of 8 bytes."""


def _where(kind: str) -> NDArray[np.bool_]:
    """Which words of 8 bytes are of this dtype."""
    found = np.zeros(WORDS, dtype=bool)
    for dtype, offset in RECORD.fields.values():
        if dtype == np.dtype(kind):
            found[offset // 8] = True
    return found


SUMS, COUNTS = _where("<f8"), _where("<i8")
FAULTS, CALLS = (RECORD.fields[name][1] // 4 for name in ("faults", "calls"))
"""Which words of 4 bytes."""


def fold(records: NDArray[Any], into: NDArray[Any]) -> None:
    """Make one record of several: sums and counts added one record after the other, faults united.

    Parameters
    ----------
    records : ndarray, shape [n, WORDS], 8-byte integers
        The records, bit for bit.
    into : ndarray, shape [WORDS], 8-byte integers
        Where the result goes.
    """
    for kind, where in (("<f8", SUMS), ("<i8", COUNTS)):
        # Not `sum`, which may add in another order; `accumulate` is defined one after the other.
        into.view(kind)[where] = np.add.accumulate(records.view(kind)[:, where], axis=0)[-1]
    halves, result = records.view("<u4"), into.view("<u4")
    result[FAULTS] = np.bitwise_or.reduce(halves[:, FAULTS])
    result[CALLS] = np.add.reduce(halves[:, CALLS], dtype=np.uint32)
