"""What only a framework knows about itself, one file per framework.

An adapter is found by the module that an array's class (or a base of it) comes from, and its file is imported when the
first array of that framework is seen. No adapter imports its framework: whoever holds an array has imported it.
"""

from __future__ import annotations

import importlib

from .base import Adapter

__all__ = ["Adapter", "find"]

# Top-level module of an array's class -> file in this folder.
_FILES = {
    "cupy": "cupy",
    "jax": "jax",
    "jaxlib": "jax",
    "numba": "numba",
    "numba_cuda": "numba",
    "torch": "torch",
}


def find(cls: type) -> Adapter | None:
    """Return the adapter for a type of array, or None where no framework needs one.

    Parameters
    ----------
    cls : type
        Class of an array.
    """
    for base in cls.__mro__:
        file = _FILES.get(base.__module__.partition(".")[0])
        if file is not None:
            adapter: Adapter = importlib.import_module(f".{file}", __name__).ADAPTER
            return adapter
    return None
