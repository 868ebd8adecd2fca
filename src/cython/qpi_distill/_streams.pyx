# cython: language_level=3, freethreading_compatible=True
"""Stream arguments: from whatever a caller calls a stream to its CUDA handle."""

from libc.stdint cimport uintptr_t

cdef extern from "Python.h":
    size_t PyLong_AsSize_t(object number) noexcept
    void* PyErr_Occurred() noexcept
    void PyErr_Clear() noexcept

# Where libraries that predate `__cuda_stream__` keep the handle: torch, CuPy, Numba.
cdef tuple _HANDLE_ATTRIBUTES = ("cuda_stream", "ptr", "handle")


cdef uintptr_t _address(object number, object what) except? 0:
    """Convert a Python integer to a handle."""
    if number < 0:
        raise ValueError(f"stream: {what} is {number}, not a stream handle")
    if number > <uintptr_t> -1:
        raise OverflowError(f"stream: {what} is {number}, too large for a stream handle")
    return <uintptr_t> number


cdef uintptr_t _from_protocol(object stream, object answer) except? 0:
    """The handle that `__cuda_stream__` of an object gives: a method, or in old libraries an attribute."""
    if callable(answer):
        answer = answer()
    try:
        version, handle = answer
    except (TypeError, ValueError):
        raise TypeError(
            f"stream: {type(stream).__name__}.__cuda_stream__ gave {answer!r}, expected (0, handle)"
        ) from None
    if version != 0:
        raise TypeError(f"stream: {type(stream).__name__}.__cuda_stream__ is version {version}, only 0 is known")
    return _address(int(handle), "the handle of __cuda_stream__")


cdef uintptr_t _from_int(object stream) except 0:
    """The handle that an exact int is. The common case costs one conversion; errors are worked out afterwards."""
    cdef size_t handle = PyLong_AsSize_t(stream)
    if handle == 0:
        raise ValueError(
            "stream: 0 is ambiguous; pass 1 for the legacy default stream, 2 for the per-thread one, or a handle"
        )
    if handle == <size_t> -1 and PyErr_Occurred() != NULL:
        PyErr_Clear()
        return _address(stream, "the number")
    return handle


cdef uintptr_t stream_handle(object stream) except 0:
    """The CUDA handle of a stream argument that is not None.

    A bare 0 is refused, because it may mean "none given" as well as "legacy default". A stream object whose handle is
    0 is the legacy default stream by its own word.
    """
    cdef uintptr_t handle
    if type(stream) is int:
        return _from_int(stream)
    if isinstance(stream, bool):
        raise TypeError("stream: a bool is not a stream")
    if isinstance(stream, int):
        return stream_handle(int(stream))
    answer = getattr(stream, "__cuda_stream__", None)
    if answer is not None:
        handle = _from_protocol(stream, answer)
        return handle if handle else <uintptr_t> LEGACY_STREAM
    for name in _HANDLE_ATTRIBUTES:
        number = getattr(stream, name, None)
        if hasattr(number, "value"):  # a ctypes pointer, whose value is None where it is null
            number = number.value or 0
        if isinstance(number, bool) or not hasattr(number, "__int__"):
            continue
        handle = _address(int(number), f"attribute {name}")
        return handle if handle else <uintptr_t> LEGACY_STREAM
    raise TypeError(
        f"stream: {type(stream).__module__}.{type(stream).__qualname__} is not a known kind of stream; expected an "
        "integer handle or an object with __cuda_stream__ (or with cuda_stream, ptr or handle)"
    )


def handle_of(stream) -> int:
    """Return the CUDA handle of a stream: an int, or an object that has one."""
    return stream_handle(stream)
