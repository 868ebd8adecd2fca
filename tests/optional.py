"""Packages that may be missing in ways that pytest.importorskip does not know."""

from __future__ import annotations

import pytest


def mpi():
    """mpi4py's MPI. mpi4py is there without an MPI library too, and says so with another error."""
    pytest.importorskip("mpi4py")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"no MPI library: {str(error).splitlines()[0]}")
    return MPI
