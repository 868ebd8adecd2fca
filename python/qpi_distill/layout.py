"""Where the slots of a state vector are."""

from __future__ import annotations

from collections.abc import Mapping

from . import _isv

__all__ = ["Layout"]

_BY_NAME = {slot.name: slot for slot in _isv.SLOTS}


class Layout:
    """The index of each slot in a buffer of 4-byte words; slots that are not named are absent.

    Absent slots are kept in the ISV's workspace, from their defaults on. A 64-bit slot takes two words, low word first.
    Layouts are immutable, compare by value and can be hashed.

    Parameters
    ----------
    index : mapping of str to int
        Name of a slot to its index, 0 or more.

    Raises
    ------
    TypeError
        If it is no mapping, a name is not a slot's, or an index is not an int.
    ValueError
        If an index is negative, or two slots overlap.
    """

    __slots__ = ("_indices",)

    _indices: tuple[int, ...]

    def __init__(self, index: Mapping[str, int]) -> None:
        if not isinstance(index, Mapping):
            raise TypeError(f"layout: {index!r} is not a mapping of slot names to indices")
        unknown = sorted(str(name) for name in set(index) - set(_BY_NAME))
        if unknown:
            raise TypeError(f"layout: unknown slot {', '.join(unknown)}; the slots are {', '.join(_BY_NAME)}")
        for name, at in index.items():
            if isinstance(at, bool) or not isinstance(at, int):
                raise TypeError(f"layout: index of {name} is {at!r}, expected an int")
            if not 0 <= at < 2**31 - 1:
                raise ValueError(f"layout: index of {name} is {at}, expected 0 or more and less than 2^31 - 1")
        self._set(tuple(index.get(name, -1) for name in _BY_NAME))

    def _set(self, indices: tuple[int, ...]) -> None:
        if _isv.layout_words(indices) < 0:
            raise ValueError(f"layout: two slots overlap in {dict(zip(_BY_NAME, indices, strict=True))}")
        object.__setattr__(self, "_indices", indices)

    @classmethod
    def native(cls) -> Layout:
        """Return the compact layout: every slot, in the manifest's order."""
        return cls._from_indices(_isv.native_layout())

    @classmethod
    def bus(cls, **more: int) -> Layout:
        """Return the layout of the seed kernels' bus: lam 486, tau 487, kl_ema 488, kl_target 491, kl_alpha 493.

        Parameters
        ----------
        **more : int
            Further slots by name and index; nothing else on the bus is ever touched.
        """
        return cls(cls._from_indices(_isv.bus_layout()).to_dict() | more)

    @classmethod
    def from_dict(cls, index: Mapping[str, int]) -> Layout:
        """Return the layout with these indices: the inverse of `to_dict`."""
        return cls(index)

    @classmethod
    def _from_indices(cls, indices: tuple[int, ...]) -> Layout:
        layout = cls.__new__(cls)
        layout._set(tuple(int(at) for at in indices))
        return layout

    def to_dict(self) -> dict[str, int]:
        """Return the index of each slot that is there, by name."""
        return {name: at for name, at in zip(_BY_NAME, self._indices, strict=True) if at >= 0}

    @property
    def indices(self) -> tuple[int, ...]:
        """The index of every slot in the manifest's order, -1 where it is absent."""
        return self._indices

    @property
    def words(self) -> int:
        """Number of 4-byte words that a buffer needs."""
        return _isv.layout_words(self._indices)

    def __contains__(self, name: object) -> bool:
        """Return whether the slot of this name is there."""
        return name in self.to_dict()

    def __getitem__(self, name: str) -> int:
        """Return the index of a slot.

        Raises
        ------
        KeyError
            If the layout has no such slot.
        """
        index = self.to_dict()
        if name not in index:
            raise KeyError(f"layout: no slot {name!r}; it has {', '.join(index)}")
        return index[name]

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: layouts are immutable."""
        raise AttributeError("layouts are immutable")

    def __eq__(self, other: object) -> bool:
        """Compare by value."""
        return isinstance(other, Layout) and self._indices == other._indices

    def __hash__(self) -> int:
        """Hash by value."""
        return hash(self._indices)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as a mapping."""
        return Layout, (self.to_dict(),)

    def __repr__(self) -> str:
        """Show the indices, or the name of a standard layout."""
        for name, standard in (("native", _isv.native_layout()), ("bus", _isv.bus_layout())):
            if self._indices == standard:
                return f"Layout.{name}()"
        return f"Layout({self.to_dict()})"
