# cython: language_level=3, freethreading_compatible=True
"""Raw pointers: what `qpi.pointer` makes."""

from libc.stdint cimport int32_t, uintptr_t

from qpi_distill._dlpack cimport DL_BOOL, DL_FLOAT, DL_INT, DL_UINT
from qpi_distill._strided cimport (
    DT_BFLOAT16,
    DT_BOOL,
    DT_FLOAT16,
    DT_FLOAT32,
    DT_FLOAT64,
    DT_INT8,
    DT_INT32,
    DT_INT64,
    DT_UINT8,
    DT_UINT32,
    check_ndim,
    device_name,
    dtype_name,
    element_count,
    fill_packed_strides,
    is_packed,
)
from qpi_distill.c_api cimport QPI_DEVICE_CPU

import sys

cdef dict _DTYPES = {
    "float32": DT_FLOAT32, "float16": DT_FLOAT16, "bfloat16": DT_BFLOAT16, "float64": DT_FLOAT64, "int8": DT_INT8,
    "int32": DT_INT32, "int64": DT_INT64, "uint8": DT_UINT8, "uint32": DT_UINT32, "bool": DT_BOOL,
}
cdef str _LITTLE = "<" if sys.byteorder == "little" else ">"


def dtype_code(dtype) -> int:
    """Return the code of a dtype given by name, as a NumPy dtype or type, or as a torch dtype.

    Raises
    ------
    TypeError
        If it is none of float32, float16, bfloat16, float64, bool and the integers of 8, 32 and 64 bits.
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", str(dtype))
    code = _DTYPES.get(name.rpartition(".")[2])
    if code is None:
        raise TypeError(f"dtype {dtype!r} is not supported; expected one of {', '.join(_DTYPES)}")
    return code


cdef class Pointer:
    """An address with dtype, shape and device: made by `qpi.pointer`, accepted wherever an array is.

    Parameters
    ----------
    address : int
        Address of the first element.
    shape : sequence of int
    dtype : str or dtype
    device : int
        -1 for the CPU, or the ordinal of a GPU.
    strides : sequence of int, optional
        In elements; None: C order.
    readonly : bool
    owner : object
        Kept alive as long as this object is.
    """
    def __init__(self, address, shape, dtype, int32_t device, strides, bint readonly, owner):
        cdef Py_ssize_t i
        check_ndim(len(shape), "pointer")
        if address < 0:
            raise ValueError(f"pointer: address {address} is negative")
        if address > <uintptr_t> -1:
            raise OverflowError(f"pointer: address {address} is beyond 64 bits")
        self.array.data = <char*> <uintptr_t> address
        self.array.dtype = dtype_code(dtype)
        self.array.ndim = <int32_t> len(shape)
        self.array.device = device
        self.array.readonly = readonly
        self.array.stream = 0
        for i in range(self.array.ndim):
            self.array.shape[i] = shape[i]
        if strides is None:
            fill_packed_strides(&self.array)
        elif len(strides) != self.array.ndim:
            raise ValueError(f"pointer: {len(strides)} strides for {self.array.ndim} dimensions")
        else:
            for i in range(self.array.ndim):
                self.array.strides[i] = strides[i]
        if element_count(&self.array, "pointer") > 0 and self.array.data == NULL:
            raise BufferError(f"pointer: null pointer for shape {tuple(shape)}")
        self.owner = owner

    @property
    def address(self) -> int:
        """Address of the first element."""
        return <uintptr_t> self.array.data

    @property
    def shape(self) -> tuple:
        """Extent of each dimension."""
        return tuple([self.array.shape[i] for i in range(self.array.ndim)])

    @property
    def strides(self) -> tuple:
        """Stride of each dimension, in elements."""
        return tuple([self.array.strides[i] for i in range(self.array.ndim)])

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.array.ndim

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        return dtype_name(self.array.dtype)

    @property
    def device(self) -> str:
        """Where the memory is: "cpu", "cuda:0" or, where a protocol did not tell, "cuda"."""
        return device_name(self.array.device)

    @property
    def ordinal(self) -> int:
        """Where the memory is: -1 for the CPU, the ordinal of a GPU, or -2 for a GPU that is not known."""
        return self.array.device

    @property
    def readonly(self) -> bool:
        """Whether it may only be read."""
        return self.array.readonly

    @property
    def packed(self) -> bool:
        """Whether it is in C order without gaps."""
        return is_packed(&self.array)

    @property
    def stream(self):
        """The stream that the producer works on, or None."""
        return self.array.stream if self.array.stream else None

    cdef dict interface(self):
        code = {DL_FLOAT: "f", DL_INT: "i", DL_UINT: "u", DL_BOOL: "b"}.get(self.array.dtype >> 8)
        if code is None:
            raise AttributeError("the array interfaces have no type code for bfloat16")
        itemsize = (self.array.dtype & 255) // 8
        return {
            "shape": self.shape,
            "typestr": f"{_LITTLE if itemsize > 1 else '|'}{code}{itemsize}",
            "data": (self.address, bool(self.array.readonly)),
            "strides": None if is_packed(&self.array) else tuple([s * itemsize for s in self.strides]),
            "version": 3,
        }

    @property
    def __cuda_array_interface__(self) -> dict:
        """The memory for libraries that read CUDA arrays."""
        if self.array.device == QPI_DEVICE_CPU:
            raise AttributeError("memory of the CPU has no __cuda_array_interface__")
        return self.interface()

    @property
    def __array_interface__(self) -> dict:
        """The memory for NumPy."""
        if self.array.device != QPI_DEVICE_CPU:
            raise AttributeError("memory of a GPU has no __array_interface__")
        return self.interface()

    def __repr__(self):
        return f"<qpi.pointer 0x{self.address:x} {self.dtype}{list(self.shape)} on {self.device}>"
