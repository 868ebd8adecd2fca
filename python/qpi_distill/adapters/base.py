"""What an adapter can say, and what holds where it says nothing."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["Adapter"]


class Adapter:
    """Facts about a framework that its arrays do not tell by any protocol."""

    name = ""
    """What error messages call the framework."""

    null_is_default = False
    """A null stream from the DLPack exchange API is the legacy default stream (and does not mean "not known")."""

    always_writable = False
    """No array of this framework is read-only, so the exchange API's borrowed tensors serve for outputs too."""

    immutable = False
    """No array of this framework may be written to."""

    prefers_dlpack = False
    """`__dlpack__` is to be asked before `__cuda_array_interface__`."""

    lazy = False
    """An array may stand for a function of its memory that has not been applied; `refuse_lazy` is to be asked."""

    own_class = ""
    """Name of the library's own class of arrays, whose public attributes say what its `__cuda_array_interface__` says.
    They are read instead: the interface builds a dictionary for every array."""

    def owns(self, cls: type) -> bool:
        """Return whether this is exactly the library's own class: a subclass may say something else.

        Parameters
        ----------
        cls : type
            Class of an array.
        """
        if not self.own_class or cls.__name__ != self.own_class:
            return False
        return getattr(sys.modules.get(cls.__module__), self.own_class, None) is cls

    def current_stream(self, array: Any, device: int) -> Any:
        """Return the stream that the framework works on now, in the calling thread.

        Parameters
        ----------
        array : array
            The array that will be read or written.
        device : int
            Ordinal of the GPU.

        Returns
        -------
        object or int or None
            Anything that is accepted as a stream, or None where the framework has no such notion.
        """
        return None

    def ask_stream(self) -> Any:
        """Return the library's own function for `current_stream`, or None.

        It takes the ordinal of a GPU alone, and its streams have their handle in attribute `ptr`.
        """
        return None

    def default_stream(self, cls: type) -> int:
        """Return where the library works on arrays that are bound to no stream, or 0 where that may change.

        Asked of a library's own class alone, whose arrays say in attribute `stream` what they are bound to: 0, or a
        stream object.

        Parameters
        ----------
        cls : type
            The library's own class of arrays.

        Returns
        -------
        int
            1, the legacy default stream, or 2, the per-thread one.
        """
        return 0

    def plain_memory(self, cls: type) -> type | None:
        """Return the library's class of memory whose attribute `device_pointer` is an address as an integer, or None.

        Parameters
        ----------
        cls : type
            The library's own class of arrays.
        """
        return None

    def exported(self, array: Any) -> Any:
        """Return the object whose `__dlpack__` is to be called for an array."""
        return array

    def refuse_lazy(self, array: Any, name: str) -> None:
        """Raise `BufferError` if the elements are not what is in memory.

        Asked of arrays that are strided or have one element: what is lazily applied arises from such views.
        """
