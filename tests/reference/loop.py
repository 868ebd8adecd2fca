"""The loop around the rows: gradient, record, moving averages, control law, faults."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag

import numpy as np

from .rows import FLOAT32_MAX, Rows, evaluate, wide

f32 = np.float32


class Fault(IntFlag):
    """Bits of slot ``faults``."""

    TAU = 1
    LAM = 2
    SUPPORT = 4
    GRAD_SCALE = 8
    WEIGHT = 16
    ALPHA = 32
    TARGET = 64
    LAW = 128
    BOUND = 256
    VALUE = 512
    TAU_LAW = 1024


class Reason(IntEnum):
    """Codes of slot ``reason``."""

    NONE = 0
    IN_BAND = 1
    ABOVE = 2
    BELOW = 3
    AT_MAX = 4
    AT_MIN = 5
    OFF = 6
    NO_ROWS = 7
    TOO_FEW = 8
    FAULT = 9
    OBSERVED = 10
    FIXED = 11
    SCHEDULED = 12
    ENDED = 13
    UNMEASURED = 14


# With one of these in the record, what was accumulated does not stand for the batch.
UNUSABLE = Fault.TAU | Fault.LAM | Fault.SUPPORT | Fault.BOUND

DEFAULTS = {
    "lam": 0.1,
    "tau": 1.0,
    "kl_ema": 0.0,
    "kl_target": 0.05,
    "kl_alpha": 0.05,
    "lam_min": 0.05,
    "lam_max": 1.0,
    "kl_tolerance": 3.0,
    "lam_up": 1.2,
    "lam_down": 0.998,
    "tau_min": 1e-3,
    "kl_row_max": 100.0,
    "min_std": 1e-3,
    "value_alpha": 0.05,
    "value_std": 0.0,
}


@dataclass(frozen=True)
class Options:
    """The choices of a ``Distiller``."""

    reduction: str = "sum"
    mode: str = "add"
    value_scale: str = "none"
    kl_stat: str = "mean"
    illegal_below: float = -math.inf


@dataclass
class Record:
    """Sums over the rows of one or several calls."""

    weighted_kl: float = 0.0
    weight: float = 0.0
    weighted_variance: float = 0.0
    rows: int = 0
    skipped: int = 0
    clipped: int = 0
    faults: int = 0


def ramp(
    lam,
    kl_ema,
    kl_target,
    *,
    lam_min=0.05,
    lam_max=1.0,
    kl_tolerance=3.0,
    lam_up=1.2,
    lam_down=0.998,
) -> tuple[np.float32, Reason]:
    """The asymmetric bounded step, operation by operation in float32, for numbers that make sense."""
    lam, kl_ema, kl_target = f32(lam), f32(kl_ema), f32(kl_target)
    low, high, tolerance = f32(lam_min), f32(lam_max), f32(kl_tolerance)
    if lam == 0:
        return lam, Reason.OFF
    lam = min(max(lam, low), high)
    with np.errstate(over="ignore"):
        upper = kl_target * tolerance
    if kl_ema > upper:
        return (high, Reason.AT_MAX) if lam >= high else (min(high, lam * f32(lam_up)), Reason.ABOVE)
    if kl_ema < kl_target / tolerance:
        return (low, Reason.AT_MIN) if lam <= low else (max(low, lam * f32(lam_down)), Reason.BELOW)
    return lam, Reason.IN_BAND


def in_unit(x) -> bool:
    """Whether x is a share: in (0, 1]."""
    return bool(0 < x <= 1)


def positive(x) -> bool:
    """Whether x is finite and above 0."""
    return bool(x > 0 and math.isfinite(x))


@dataclass
class Loop:
    """The state vector, its record, and what each call does to them.

    ``slots`` holds what a host may set, in float32 like the buffer; counters and outputs are plain attributes.
    """

    zero_sentinel: bool = False  # the bus layout: kl_ema == 0 stands for "not initialised"
    slots: dict = field(default_factory=lambda: {k: f32(v) for k, v in DEFAULTS.items()})
    observations: int = 0
    value_observations: int = 0
    kl_last: np.float32 = field(default_factory=lambda: f32(0))
    rows_last: int = 0
    skipped_last: int = 0
    clipped_last: int = 0
    skipped_rows: int = 0
    clipped_rows: int = 0
    faults: int = 0
    reason: int = Reason.NONE
    record: Record = field(default_factory=Record)

    def set(self, **values) -> Loop:
        for name, value in values.items():
            if name not in self.slots:
                raise KeyError(name)
            self.slots[name] = f32(value)
        return self

    def __getitem__(self, name):
        return self.slots[name]

    # ---- rows ----------------------------------------------------------------------------------------------------

    def state_faults(self, options: Options) -> Fault:
        """Faults of the state vector that forbid any gradient."""
        s = self.slots
        faults = Fault(0)
        if not (s["tau"] >= 0) or not s["tau_min"] > 0:
            faults |= Fault.TAU
        if not (s["lam"] >= 0 and math.isfinite(s["lam"])):
            faults |= Fault.LAM
        if not s["kl_row_max"] > 0:
            faults |= Fault.BOUND
        if options.value_scale != "none":
            std_is_bad = not (s["value_std"] >= 0 and math.isfinite(s["value_std"]))
            if not s["min_std"] > 0 or (self.value_observations and std_is_bad):
                faults |= Fault.BOUND
        return faults

    def rows(self, q_logits, pi_logits, support, options, *, legal_actions=None, row_weights=None) -> Rows:
        s = self.slots
        return evaluate(
            q_logits,
            pi_logits,
            support,
            tau=float(s["tau"]),
            tau_min=float(s["tau_min"]),
            kl_row_max=float(s["kl_row_max"]),
            min_std=float(s["min_std"]),
            value_scale=options.value_scale,
            value_std=float(s["value_std"]) if self.value_observations else None,
            legal_actions=legal_actions,
            row_weights=row_weights,
            illegal_below=options.illegal_below,
        )

    def gradient(self, rows: Rows, before, options, grad_scale=None) -> np.ndarray:
        """The gradient buffer after a call, in float64: not yet rounded to the buffer's dtype."""
        before = wide(before)
        scale = 1.0 if grad_scale is None else float(f32(grad_scale))
        if self.state_faults(options):
            return before
        if not math.isfinite(scale):
            return before if options.mode == "add" else np.zeros_like(before)
        if options.reduction == "mean":
            scale /= len(before)
        step = scale * float(self["lam"]) * rows.weight[:, None] * (rows.policy - rows.target)
        if options.mode == "add":
            return before + step
        return np.where(rows.written[:, None], step, 0.0)

    def statistic(self, rows: Rows, options, grad_scale=None) -> Record:
        """The record of one call."""
        faults = self.state_faults(options)
        halted = bool(faults)
        if grad_scale is not None and not math.isfinite(f32(grad_scale)):
            faults |= Fault.GRAD_SCALE
        if halted:
            return Record(faults=int(faults))
        if rows.bad_weight.any():
            faults |= Fault.WEIGHT
        if rows.unsupported.any():
            faults |= Fault.SUPPORT
        counted = rows.counted.copy()
        if options.kl_stat == "row0":
            counted[1:] = False
        w = np.where(counted, rows.weight, 0.0)
        return Record(
            weighted_kl=float((w * rows.kl).sum()),
            weight=float(w.sum()),
            weighted_variance=float((w * rows.variance).sum()),
            rows=int(counted.sum()),
            skipped=int(rows.skipped.sum()),
            clipped=int(rows.clipped.sum()),
            faults=int(faults),
        )

    def accumulate(
        self, q_logits, pi_logits, support, grad, options, *, legal_actions=None, row_weights=None, grad_scale=None
    ) -> tuple[np.ndarray, Rows]:
        rows = self.rows(q_logits, pi_logits, support, options, legal_actions=legal_actions, row_weights=row_weights)
        out = self.gradient(rows, grad, options, grad_scale)
        new, old = self.statistic(rows, options, grad_scale), self.record
        self.record = Record(
            old.weighted_kl + new.weighted_kl,
            old.weight + new.weight,
            old.weighted_variance + new.weighted_variance,
            old.rows + new.rows,
            old.skipped + new.skipped,
            old.clipped + new.clipped,
            old.faults | new.faults,
        )
        return out, rows

    # ---- commit --------------------------------------------------------------------------------------------------

    def observe(self) -> bool:
        """Moving averages and counters from the record, which is then empty. Whether there was an observation."""
        record, self.record = self.record, Record()
        self.rows_last, self.skipped_last, self.clipped_last = record.rows, record.skipped, record.clipped
        self.skipped_rows += record.skipped
        self.clipped_rows += record.clipped
        self.faults |= record.faults
        s = self.slots
        if record.faults & UNUSABLE:
            self.reason = Reason.FAULT
            return False
        if not record.weight > 0:
            self.reason = Reason.NO_ROWS
            return False
        if not (in_unit(s["kl_alpha"]) and in_unit(s["value_alpha"])):
            self.faults |= Fault.ALPHA
            self.reason = Reason.FAULT
            return False
        kl = record.weighted_kl / record.weight
        variance = record.weighted_variance / record.weight
        first = s["kl_ema"] == 0 if self.zero_sentinel else self.observations == 0
        if not first and not math.isfinite(s["kl_ema"]):
            self.faults |= Fault.LAW
            self.reason = Reason.FAULT
            return False
        self.kl_last = f32(kl)
        alpha = float(s["kl_alpha"])
        s["kl_ema"] = f32(kl if first else (1 - alpha) * float(s["kl_ema"]) + alpha * kl)
        self.observations += 1
        alpha = float(s["value_alpha"])
        if self.value_observations:
            variance = (1 - alpha) * float(s["value_std"]) ** 2 + alpha * variance
        if variance <= FLOAT32_MAX:
            s["value_std"] = f32(math.sqrt(variance))
            self.value_observations += 1
        else:
            self.faults |= Fault.VALUE
        self.reason = Reason.OBSERVED
        return True

    def control(self) -> None:
        """The law on kl_ema as it stands."""
        s = self.slots
        faults = Fault(0)
        if not positive(s["kl_target"]):
            faults |= Fault.TARGET
        sensible = (
            positive(s["lam_min"])
            and positive(s["lam_max"])
            and s["lam_min"] <= s["lam_max"]
            and s["kl_tolerance"] >= 1
            and s["lam_up"] >= 1
            and in_unit(s["lam_down"])
            and s["kl_ema"] >= 0
            and all(math.isfinite(s[name]) for name in ("kl_tolerance", "lam_up", "kl_ema"))
        )
        if not sensible:
            faults |= Fault.LAW
        if not (s["lam"] >= 0 and math.isfinite(s["lam"])):
            faults |= Fault.LAM
        if faults:
            self.faults |= faults
            self.reason = Reason.FAULT
            return
        if s["lam"] == 0:
            self.reason = Reason.OFF
            return
        if not (s["kl_ema"] != 0 if self.zero_sentinel else self.observations):
            self.reason = Reason.TOO_FEW
            return
        names = ("lam_min", "lam_max", "kl_tolerance", "lam_up", "lam_down")
        s["lam"], self.reason = ramp(s["lam"], s["kl_ema"], s["kl_target"], **{n: s[n] for n in names})

    def commit(self) -> None:
        if self.observe():
            self.control()

    def discard(self) -> None:
        self.record = Record()

    def step(self, q_logits, *args, **kwargs) -> tuple[np.ndarray, Rows]:
        out = self.accumulate(q_logits, *args, **kwargs)
        if len(q_logits):
            self.commit()
        return out

    def distill_grad(self, q_logits, *args, **kwargs) -> tuple[np.ndarray, Rows]:
        out = self.accumulate(q_logits, *args, **kwargs)
        if len(q_logits):
            self.observe()
        return out

    def copy(self) -> Loop:
        return replace(self, slots=dict(self.slots), record=replace(self.record))
