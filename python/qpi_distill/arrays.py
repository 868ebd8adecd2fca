"""Arrays that the package makes or understands."""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING

import numpy as np

from . import _pointer
from ._devices import ordinal_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

__all__ = ["linspace", "pointer"]


def linspace(low: float, high: float, atoms: int) -> NDArray[np.float32]:
    """Return evenly spaced support values.

    Parameters
    ----------
    low, high : float
        Value of the first and of the last atom.
    atoms : int
        Number of atoms, 1 or more; a single atom has the value `low`.

    Returns
    -------
    ndarray, shape [atoms], float32

    Raises
    ------
    ValueError
        Fewer than 1 atom, or bounds that are not finite in float32.
    TypeError
        Bounds that are not real numbers, or a number of atoms that is not an integer.
    """
    low, high = real_of(low, "low"), real_of(high, "high")
    if index_of(atoms, "atoms") < 1:
        raise ValueError(f"atoms: {atoms}, expected 1 or more")
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.linspace(low, high, atoms, dtype=np.float64).astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError(f"support from {low} to {high}: has to be finite in float32")
    return values


def index_of(value: Any, name: str) -> int:
    """Return an integer argument as an int; a fraction or a boolean is none."""
    if not isinstance(value, (bool, np.bool_)):
        with contextlib.suppress(TypeError):
            return operator.index(value)
    raise TypeError(f"{name}: {value!r} is not an integer")


def bound_of(value: Any, name: str) -> int:
    """Return an upper bound, where 0 stands for none, as an int."""
    bound = index_of(value, name)
    if not 0 <= bound < 2**31:
        raise ValueError(f"{name}: {bound}, expected 0 or more and less than 2^31")
    return bound


def real_of(value: Any, name: str) -> float:
    """Return a real number as a float; text or a boolean is none."""
    if not isinstance(value, (str, bytes, bool, np.bool_)):
        with contextlib.suppress(TypeError, ValueError):
            return float(value)
    raise TypeError(f"{name}: {value!r} is not a real number")


def pointer(
    address: int,
    shape: Sequence[int],
    dtype: Any = "float32",
    *,
    device: Any,
    strides: Sequence[int] | None = None,
    readonly: bool = False,
    owner: Any = None,
) -> _pointer.Pointer:
    """Return an address with its shape, accepted wherever an array is.

    Nothing about the address can be checked here: that the memory is as large as shape and strides say is the caller's
    word. Where it lives is checked by `Distiller.bind`, and at every call of a `Distiller(checked=True)`.

    Parameters
    ----------
    address : int
        Address of the first element, on the host or on the device.
    shape : sequence of int
        Extent of each dimension.
    dtype : str or dtype
        float32, float16, bfloat16, bool, or an integer of 8, 32 or 64 bits.
    device : str, int or device object
        As for `ISV`; required.
    strides : sequence of int, optional
        Stride of each dimension in elements; None: C order.
    readonly : bool
        Whether it is refused as an output.
    owner : object, optional
        Kept alive as long as the result is.

    Raises
    ------
    ValueError
        A negative extent or address, a number of strides that does not fit the shape.
    TypeError
        A dtype that is not supported.
    BufferError
        Address 0 for an array that is not empty.
    OverflowError
        A shape of 2^63 elements or more.
    """
    if device is None:
        raise ValueError("device: required for a pointer; 'cpu', 'cuda:<ordinal>' or an ordinal")
    steps = None if strides is None else _integers(strides, "strides")
    return _pointer.Pointer(
        index_of(address, "address"), _integers(shape, "shape"), dtype, ordinal_of(device), steps, readonly, owner
    )


def _integers(values: Any, name: str) -> tuple[int, ...]:
    """Return a sequence of integers as a tuple of int."""
    try:
        items = tuple(values)
    except TypeError:
        raise TypeError(f"{name}: {values!r} is not a sequence of integers") from None
    return tuple(index_of(item, name) for item in items)
