"""Fake array libraries: objects that speak exactly one protocol, with every field under the test's control."""

from __future__ import annotations

import ctypes

import numpy as np

INT, UINT, FLOAT, OPAQUE, BFLOAT, COMPLEX, BOOL = range(7)
CPU, CUDA, CUDA_HOST, METAL, MANAGED = 1, 2, 3, 8, 13
READ_ONLY, IS_COPIED = 1, 2

_CODES = {"f": FLOAT, "i": INT, "u": UINT, "b": BOOL, "c": COMPLEX}


class DLDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


DELETER = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class Plain(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER))


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    )


FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.POINTER(Versioned)))
BORROW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
WORK_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class ExchangeAPI(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("from_object", FROM_OBJECT),
        ("to_object", ctypes.c_void_p),
        ("borrow", BORROW),
        ("work_stream", WORK_STREAM),
    )


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def address(array) -> int:
    return array.__array_interface__["data"][0]


def fill(tensor, array, *, device=(CPU, 0), dtype=None, shape=None, strides="own", data=None, offset=0, lanes=1):
    """Describe a NumPy array in a DLTensor. Returns what has to stay alive."""
    shape = array.shape if shape is None else shape
    if strides == "own":
        strides = tuple(step // array.itemsize for step in array.strides)
    code, bits = dtype or (_CODES[array.dtype.kind], 8 * array.itemsize)
    kept = [(ctypes.c_int64 * max(len(shape), 1))(*shape)]
    tensor.data = (address(array) if data is None else data) - offset
    tensor.device = DLDevice(*device)
    tensor.ndim = len(shape)
    tensor.dtype = DLDataType(code, bits, lanes)
    tensor.shape = ctypes.cast(kept[0], ctypes.POINTER(ctypes.c_int64))
    tensor.byte_offset = offset
    if strides is None:
        tensor.strides = None
    else:
        kept.append((ctypes.c_int64 * max(len(strides), 1))(*strides))
        tensor.strides = ctypes.cast(kept[1], ctypes.POINTER(ctypes.c_int64))
    return kept


class DLPack:
    """A producer of DLPack capsules; keeps the requests.

    With ``counted`` it counts how often the deleter ran. Its capsules then run Python code when they are dropped, which
    must not happen while an exception is on its way.
    """

    def __init__(
        self, array, *, version=(1, 0), flags=0, old=False, device=(CPU, 0), name=None, counted=False, **fields
    ):
        self.array, self.version, self.flags, self.old, self.device, self.name = (
            array,
            version,
            flags,
            old,
            device,
            name,
        )
        self.counted, self.fields = counted, fields
        self.requests = []
        self.deleted = 0
        self._kept = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        self.requests.append(options)
        if self.old and "max_version" in options:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        managed = Plain() if self.version is None or self.old else Versioned()

        def delete(_):
            self.deleted += 1

        managed.deleter = DELETER(delete)
        kept = fill(managed.tensor, self.array, device=self.device, **self.fields)
        if isinstance(managed, Versioned):
            managed.major, managed.minor = self.version
            managed.flags = self.flags
        self._kept.append((managed, kept))
        name = self.name or (b"dltensor_versioned" if isinstance(managed, Versioned) else b"dltensor")
        destructor = ctypes.cast(_DESTROY, ctypes.c_void_p) if self.counted else None
        return _capsule(ctypes.addressof(managed), name, destructor)


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _DESTROY(capsule):
    """What a producer's capsule does when it is dropped unconsumed: call the deleter."""
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, (ctypes.c_void_p,)
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
    name = get_name(capsule)
    kind = {b"dltensor": Plain, b"dltensor_versioned": Versioned}.get(name)
    if kind is not None:
        kind.from_address(get_pointer(capsule, name)).deleter(None)


class CudaArray:
    """A producer of the CUDA array interface, around memory that is not CUDA's."""

    def __init__(self, array, **fields):
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (address(array), False),
            "strides": None if array.flags.c_contiguous else array.strides,
            "version": 3,
            **fields,
        }
        for name in [name for name, value in fields.items() if value is KeyError]:
            del self.__cuda_array_interface__[name]


def exchange_class(
    *, major=1, previous=None, borrow=True, flags=0, stream=0, device=(CPU, 0), name=b"dlpack_exchange_api"
):
    """Return a new class of arrays with a DLPack C exchange API; its `calls` counts what was used."""

    class Array:
        calls = {"borrowed": 0, "owned": 0, "deleted": 0, "stream": 0}  # noqa: RUF012

        def __init__(self, array, **fields):
            self.array, self.fields = array, fields
            self.kept = []

    def borrowed(obj, out):
        Array.calls["borrowed"] += 1
        obj.kept.append(fill(out[0], obj.array, **{"device": device, **obj.fields}))
        return 0

    def owned(obj, out):
        Array.calls["owned"] += 1
        managed = Versioned(major=1, minor=3, flags=flags)

        def delete(_):
            Array.calls["deleted"] += 1

        managed.deleter = DELETER(delete)
        kept = fill(managed.tensor, obj.array, **{"device": device, **obj.fields})
        obj.kept.append((managed, kept))
        out[0] = ctypes.pointer(managed)
        return 0

    def work_stream(kind, ordinal, out):
        Array.calls["stream"] += 1
        out[0] = stream(ordinal) if callable(stream) else stream
        return 0

    api = ExchangeAPI(major=major, minor=3, from_object=FROM_OBJECT(owned), work_stream=WORK_STREAM(work_stream))
    if borrow:
        api.borrow = BORROW(borrowed)
    if previous is not None:
        api.previous = ctypes.addressof(previous)
    Array.api = api
    Array.__dlpack_c_exchange_api__ = _capsule(ctypes.addressof(api), name, None)
    return Array


def smoke(dtype=np.float32):
    """One row with KL 1.150420765 and increments of 0.575210383, 0 and their negative at lam = 1."""
    q = np.array([[[0, -40], [0, 0], [0, 40]]], dtype)
    pi = np.array([[1, 0, -1]], dtype)
    return q, pi, np.zeros_like(pi)


SMOKE_GRAD = np.array([[0.575210383, 0, -0.575210383]])
SMOKE_KL = 1.150420765
