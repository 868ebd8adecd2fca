"""Where the installed files are, for those who build against the package."""

from __future__ import annotations

from . import _core

__all__ = [
    "get_cmake_dir",
    "get_include",
    "get_library",
    "get_library_dir",
    "get_pkgconfig_dir",
    "get_seed_fatbin",
]


def _existing(name: str, what: str) -> str:
    # Beside the compiled modules: an editable install keeps the Python files elsewhere.
    from pathlib import Path

    path = Path(_core.__file__).resolve().parent / name
    if not path.exists():
        raise FileNotFoundError(f"{what} is not part of this installation: there is no {path}")
    return str(path)


def get_include() -> str:
    """Return the directory of ``qpi_distill.h`` and ``qpi_distill.hpp``.

    Raises
    ------
    FileNotFoundError
        If this installation has none.
    """
    return _existing("include", "the header")


def get_library_dir() -> str:
    """Return the directory of ``libqpi_distill.so``.

    Raises
    ------
    FileNotFoundError
        If this installation has none.
    """
    return _existing("lib", "the library's directory")


def get_library() -> str:
    """Return the path of ``libqpi_distill.so``.

    Raises
    ------
    FileNotFoundError
        If this installation has none.
    """
    return _existing("lib/libqpi_distill.so", "the library")


def get_cmake_dir() -> str:
    """Return the directory of the CMake package, for ``qpi_distill_DIR``.

    Raises
    ------
    FileNotFoundError
        If this installation has none.
    """
    return _existing("lib/cmake/qpi_distill", "the CMake package")


def get_pkgconfig_dir() -> str:
    """Return the directory of ``qpi_distill.pc``, for ``PKG_CONFIG_PATH``.

    Raises
    ------
    FileNotFoundError
        If this installation has none.
    """
    return _existing("lib/pkgconfig", "the pkg-config file")


def get_seed_fatbin() -> str:
    """Return the path of the fatbin with the two seed kernels under their own names.

    Raises
    ------
    FileNotFoundError
        If the package was built without CUDA.
    """
    return _existing("lib/qpi_seed_kernels.fatbin", "the fatbin of the seed kernels")
