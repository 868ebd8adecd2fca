"""One law against one plant, for several seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..isv import ISV
from ..recorder import Recorder
from .plant import Batch, Plant, Table

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Arm", "Outcome", "simulate"]

_DRAIN = 1024  # steps between two drains of the recorder


@dataclass(frozen=True)
class Arm:
    """A law with its numbers.

    Parameters
    ----------
    name : str
        What tables and pictures call it.
    values : mapping of str to float, int or str
        Arguments of `ISV`: `preset`, `lam_law`, `tau_law`, `kl_target` and any other slot.
    """

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What came of an arm.

    Attributes
    ----------
    arm : Arm
    plant : Plant
    seeds : tuple of int
    records : structured array, shape [seeds, steps], dtype `Recorder.dtype`
        The flight records of the library: lam, tau, the KL that the law saw, reasons, ...
    kl, agreement : array of float64, shape [seeds, steps]
        The true KL of each batch, in nats, and the share of its rows where policy and critic prefer the same action.
    agreement_end : array of float64, shape [seeds]
        That share over the whole table, after the last step.
    """

    arm: Arm
    plant: Plant
    seeds: tuple[int, ...]
    records: npt.NDArray[Any]
    kl: npt.NDArray[np.float64]
    agreement: npt.NDArray[np.float64]
    agreement_end: npt.NDArray[np.float64]

    def summary(self, burn_in: int = 0) -> dict[str, npt.NDArray[np.float64]]:
        """Return figures of merit, an entry for each seed.

        Parameters
        ----------
        burn_in : int
            Steps at the beginning that are left out of the means.

        Returns
        -------
        dict of str to array, shape [seeds]
            ``kl``, mean true KL; ``kl_seen``, mean of what the law was shown; ``in_band``, share of steps with a
            true KL within a factor 1.5 of the goal; ``log_std``, standard deviation of log lam; ``travel``, mean step
            of log lam; ``kl_end``, mean true KL of the last tenth; ``lam`` and ``tau`` at the end; ``agreement``, over
            the whole table at the end.
        """
        records, kl = self.records[:, burn_in:], self.kl[:, burn_in:]
        lam = records["lam"].astype(np.float64)
        log_lam = np.log(np.where(lam > 0, lam, 1.0))
        log_lam -= log_lam[:, :1]  # what does not move has a deviation of exactly 0
        ratio = kl / records["kl_target"]
        return {
            "kl": kl.mean(-1),
            "kl_end": self.kl[:, -max(1, self.kl.shape[1] // 10) :].mean(-1),
            "kl_seen": records["kl_last"].astype(np.float64).mean(-1),
            "in_band": ((ratio <= 1.5) & (ratio >= 1 / 1.5)).mean(-1),
            "log_std": log_lam.std(-1),
            "travel": np.abs(np.diff(log_lam)).mean(-1) if log_lam.shape[1] > 1 else np.zeros(len(lam)),
            "lam": lam[:, -1],
            "tau": records["tau"][:, -1].astype(np.float64),
            "agreement": self.agreement_end,
        }


class _Loop:
    """The library's side of one seed: an ISV that is given statistics instead of rows."""

    def __init__(self, arm: Arm, rows: int, actions: int) -> None:
        self.isv = ISV(device="cpu", **{"lam": 0.1, "tau": 0.1, **arm.values})
        self.recorder = Recorder(self.isv, 2 * _DRAIN)
        self._record = self.isv.record_views()
        self._slots = self.isv.slots
        self._at = self.isv.layout.to_dict()
        self._rows = rows
        self._most = math.log(actions)

    def now(self, name: str) -> float:
        return float(self._slots[self._at[name]])

    def commit(self, batch: Batch, seed: int) -> None:
        slots, at = self._slots, self._at
        entropy = batch.target_entropy[seed]
        slots[at["target_entropy"]] = entropy
        slots[at["uniform_entropy"]] = self._most
        slots[at["policy_entropy"]] = batch.policy_entropy[seed]
        slots[at["agreement"]] = batch.agreement[seed]
        slots[at["prior_kl"]] = max(0.0, self._most - entropy)  # the prior is the uniform policy
        self._record.sums[:] = batch.seen[seed] * self._rows, self._rows, 0.0
        self._record.counts[0] = self._rows
        self.isv.commit()


def simulate(
    arm: Arm,
    plant: Plant | None = None,
    *,
    steps: int = 6000,
    seeds: Sequence[int] = (0, 1, 2),
    progress: Callable[[float], None] | None = None,
) -> Outcome:
    """Run a law against a plant.

    Parameters
    ----------
    arm : Arm
        The law. Unless it says otherwise lam starts at 0.1 and tau at 0.1.
    plant : Plant, optional
        Default: `Plant()`.
    steps : int
        Steps, each a batch and a commit.
    seeds : sequence of int
        Tables to run it on. A seed gives the same table and batches to every law.
    progress : callable, optional
        Called now and then with the share that is done.

    Returns
    -------
    Outcome

    Raises
    ------
    ValueError, TypeError
        No steps or seeds, or values that `ISV` refuses.
    FaultError
        The law met numbers that make no sense.
    """
    plant = plant or Plant()
    if steps < 1:
        raise ValueError(f"steps: {steps} is below 1")
    if not seeds:
        raise ValueError("seeds: none are given")
    table = Table(plant, list(seeds))
    loops = [_Loop(arm, plant.rows, plant.actions) for _ in seeds]
    kl, agreement = np.empty((2, len(loops), steps))
    for i in range(steps):
        lam = np.array([loop.now("lam") for loop in loops])
        tau = np.array([loop.now("tau") for loop in loops])
        batch = table.step(lam, tau)
        kl[:, i], agreement[:, i] = batch.kl, batch.agreement
        for seed, loop in enumerate(loops):
            loop.commit(batch, seed)
        if i % _DRAIN == _DRAIN - 1 or i == steps - 1:
            for loop in loops:
                loop.recorder.drain()
            if progress is not None:
                progress((i + 1) / steps)
    for loop in loops:
        loop.isv.read()  # a fault is an error
    records = np.stack([loop.recorder.records for loop in loops])
    return Outcome(arm, plant, tuple(seeds), records, kl, agreement, table.agreement())
