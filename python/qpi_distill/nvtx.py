"""NVTX ranges around the calls, for Nsight Systems and other profilers: pip install "qpi-distill[nvtx]".

Off unless asked for, with `enable`, `ranges` or ``QPI_DISTILL_NVTX=1`` in the environment. They are put around the
methods when they are switched on and taken away again: off, they cost nothing at all, because there is nothing.

A range shows when the host makes a call. What the call puts on a stream is in the profiler's row of kernels.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from .distiller import Distiller
from .isv import ISV
from .recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

__all__ = ["disable", "enable", "enabled", "ranges"]

_DOMAIN = "qpi_distill"
_METHODS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (Distiller, ("step", "accumulate", "distill_grad", "measure", "commit", "discard", "prepare", "bind")),
    (ISV, ("commit", "control", "discard", "read", "set")),
    (Recorder, ("drain",)),
)
_BOUND = ("step", "accumulate", "distill_grad")

#: What was there before: a method of the class itself, or None where it is inherited.
_before: dict[tuple[type, str], Callable[..., Any] | None] = {}


def enabled() -> bool:
    """Return whether the ranges are on."""
    return bool(_before)


def enable() -> None:
    """Put the ranges around the calls of this process. Bound calls have them if they are bound after this.

    Raises
    ------
    ImportError
        The package nvtx is not installed.
    """
    if _before:
        return
    try:
        import nvtx
    except ImportError as error:
        raise ImportError(f'NVTX ranges need the package nvtx ({error}): pip install "qpi-distill[nvtx]"') from error
    domain = nvtx.get_domain(_DOMAIN)
    for owner, names in _METHODS:
        for name in names:
            _before[owner, name] = owner.__dict__.get(name)
            setattr(owner, name, _ranged(domain, f"{owner.__name__}.{name}", getattr(owner, name)))
    bind: Callable[..., Any] = Distiller.bind

    @functools.wraps(bind)
    def bind_ranged(self: Distiller, *arguments: Any, **options: Any) -> _Bound:
        return _Bound(domain, bind(self, *arguments, **options))

    Distiller.bind = bind_ranged  # type: ignore[method-assign]


def disable() -> None:
    """Take the ranges away. What was bound while they were on keeps its own."""
    for (owner, name), method in _before.items():
        if method is None:
            delattr(owner, name)
        else:
            setattr(owner, name, method)
    _before.clear()


@contextlib.contextmanager
def ranges() -> Iterator[None]:
    """Have the ranges on for a while."""
    was = enabled()
    enable()
    try:
        yield
    finally:
        if not was:
            disable()


def _ranged(domain: Any, message: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method, or a bound one, within a range."""
    attributes = domain.get_event_attributes(message=message)
    push, pop = domain.push_range, domain.pop_range

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        push(attributes)
        try:
            return method(*arguments, **options)
        finally:
            pop()

    return call


class _Bound:
    """A bound call whose methods are within ranges."""

    def __init__(self, domain: Any, bound: Any) -> None:
        self._bound = bound
        for name in _BOUND:
            setattr(self, name, _ranged(domain, f"Bound.{name}", getattr(bound, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bound, name)
