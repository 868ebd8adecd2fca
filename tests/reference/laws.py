"""The control laws, written out in float64. What a law leaves in a slot is float32, so it is rounded there, once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .loop import Reason

f32 = np.float32


def f64(x) -> float:
    """What a float32 slot holds of x, as float64."""
    with np.errstate(over="ignore"):
        return float(f32(x))


def within(x, low, high):
    return min(max(x, low), high)


@dataclass
class Step:
    """What a law is asked about: its slots, the driver of the moment, and what the law did last."""

    slots: dict
    value: float  # clamped
    low: float
    high: float
    kl: float = 0.0
    goal: float = 1.0
    tolerance: float = 3.0
    share: float = 0.0  # of a schedule
    integral: float | None = None

    def __getitem__(self, name):
        return f64(self.slots[name])

    @property
    def band(self) -> Reason:
        # The edges of the dead zone are float32 products.
        with np.errstate(over="ignore"):
            upper, lower = f32(self.goal) * f32(self.tolerance), f32(self.goal) / f32(self.tolerance)
        if f32(self.kl) > upper:
            return Reason.AT_MAX if self.value >= self.high else Reason.ABOVE
        if f32(self.kl) < lower:
            return Reason.AT_MIN if self.value <= self.low else Reason.BELOW
        return Reason.IN_BAND

    @property
    def error(self) -> float:
        return self.kl / self.goal - 1

    def moved_to(self, x) -> float:
        return f64(within(x, self.low, self.high))


def bounded_step(s: Step):
    factor = {Reason.ABOVE: s["lam_up"], Reason.BELOW: s["lam_down"]}.get(s.band, 1.0)
    return s.moved_to(f64(s.value * factor)), s.band


def fixed(s: Step):
    return s.value, Reason.FIXED


def ziegler(s: Step):
    limit = s["ziegler_clip"]
    return s.moved_to(s.value * (1 + s["ziegler_gain"] * within(s.error, -limit, limit))), s.band


def log_dual(s: Step):
    limit = s["dual_clip"]
    return s.moved_to(math.exp(math.log(s.value) + s["dual_rate"] * within(s.error, -limit, limit))), s.band


def log_pi(s: Step):
    limit, slew = s["pi_clip"], s["pi_slew"]
    x = math.log(s.value)
    e = -limit if s.kl <= 0 else within(math.log(s.kl / s.goal), -limit, limit)
    integral = x if s.integral is None else s.integral
    floor = max(math.log(s.low), x - slew)
    ceiling = min(math.log(s.high), x + slew)
    p = s["pi_gain"] * e
    # It moves with the error, to where the output meets a limit and no further; it is never pulled back.
    room = max(0.0, ceiling - p - integral) if e > 0 else max(0.0, integral + p - floor)
    integral += math.copysign(min(abs(s["pi_rate"] * e), room), e)
    s.integral = f64(integral)
    return s.moved_to(math.exp(within(integral + p, floor, ceiling))), s.band


def schedule(s: Step, start, end, share):
    return s.moved_to(start + (end - start) * share), Reason.SCHEDULED if s.share < 1 else Reason.ENDED


def linear(s: Step):
    return schedule(s, s["lam_from"], s["lam_to"], s.share)


def cosine(s: Step):
    return schedule(s, s["lam_from"], s["lam_to"], (1 - math.cos(math.pi * s.share)) / 2)


def tau_linear(s: Step):
    return schedule(s, s["tau_from"], s["tau_to"], s.share)


def tau_cosine(s: Step):
    return schedule(s, s["tau_from"], s["tau_to"], (1 - math.cos(math.pi * s.share)) / 2)


def target_entropy(s: Step):
    entropy, most = s["target_entropy"], s["uniform_entropy"]
    if entropy < 0 or most <= 0:
        return s.value, Reason.UNMEASURED
    e = s["entropy_goal"] - entropy / most
    reason = Reason.IN_BAND
    if e > s["entropy_tolerance"]:
        reason = Reason.AT_MAX if s.value >= s.high else Reason.BELOW
    if e < -s["entropy_tolerance"]:
        reason = Reason.AT_MIN if s.value <= s.low else Reason.ABOVE
    return s.moved_to(s.value * math.exp(s["entropy_rate"] * e)), reason


def mpo_dual(s: Step):
    if s.kl < 0:
        return s.value, Reason.UNMEASURED
    limit = s["mpo_clip"]
    return s.moved_to(s.value * math.exp(s["mpo_rate"] * within(s.error, -limit, limit))), s.band


LAM_LAWS = {f.__name__: f for f in (bounded_step, fixed, ziegler, log_dual, log_pi, linear, cosine)}
TAU_LAWS = {
    "fixed": fixed,
    "linear": tau_linear,
    "cosine": tau_cosine,
    "target_entropy": target_entropy,
    "mpo_dual": mpo_dual,
}


@dataclass
class Laws:
    """lam and tau under their laws. `slots` holds every parameter by name."""

    slots: dict
    lam: float
    tau: float
    observations: int = 0
    integral: float | None = None
    reason: Reason = Reason.NONE
    tau_reason: Reason = Reason.NONE

    def _share(self, steps: int) -> float:
        return within((self.observations - max(self.slots["law_warmup"], 1)) / steps, 0, 1)

    def step(self, kl_ema: float) -> None:
        """One observation and both laws, for numbers that make sense."""
        self.observations += 1
        slots = self.slots
        if self.observations < slots["law_warmup"]:
            self.reason = self.tau_reason = Reason.TOO_FEW
            if slots["tau_law"] == "fixed":
                self.tau_reason = Reason.FIXED
            return
        low, high = f64(slots["lam_min"]), f64(slots["lam_max"])
        s = Step(slots, within(self.lam, low, high), low, high, integral=self.integral)
        s.kl, s.goal, s.tolerance = f64(kl_ema), s["kl_target"], s["kl_tolerance"]
        s.share = self._share(slots["lam_steps"])
        if self.lam == 0 or slots["lam_off"]:
            self.reason = Reason.OFF
        else:
            self.lam, self.reason = LAM_LAWS[slots["lam_law"]](s)
            self.integral = s.integral

        if slots["tau_law"] == "fixed":
            self.tau_reason = Reason.FIXED
            return
        low, high = f64(slots["tau_min"]), f64(slots["tau_max"])
        s = Step(slots, within(self.tau, low, high), low, high)
        s.kl, s.goal, s.tolerance = s["prior_kl"], s["mpo_epsilon"], s["kl_tolerance"]
        s.share = self._share(slots["tau_steps"])
        self.tau, self.tau_reason = TAU_LAWS[slots["tau_law"]](s)
