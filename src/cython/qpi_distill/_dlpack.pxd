# The parts of the DLPack 1.x binary interface that a consumer needs. The layout of these structs is fixed within a
# major version.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    DL_MAJOR = 1
    DL_MINOR = 3

cdef enum DLDeviceType:
    DL_CPU = 1
    DL_CUDA = 2
    DL_CUDA_HOST = 3
    DL_CUDA_MANAGED = 13

cdef enum DLDataTypeCode:
    DL_INT = 0
    DL_UINT = 1
    DL_FLOAT = 2
    DL_OPAQUE = 3
    DL_BFLOAT = 4
    DL_COMPLEX = 5
    DL_BOOL = 6

cdef enum:
    DL_READ_ONLY = 1
    DL_IS_COPIED = 2

ctypedef struct DLVersion:
    uint32_t major
    uint32_t minor

ctypedef struct DLDevice:
    int32_t device_type
    int32_t device_id

ctypedef struct DLDataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes

ctypedef struct DLTensor:
    void* data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t* shape
    int64_t* strides  # in elements; NULL: C order
    uint64_t byte_offset

cdef struct DLManagedTensor:
    DLTensor dl_tensor
    void* manager_ctx
    void (*deleter)(DLManagedTensor*) noexcept

cdef struct DLManagedTensorVersioned:
    DLVersion version
    void* manager_ctx
    void (*deleter)(DLManagedTensorVersioned*) noexcept
    uint64_t flags
    DLTensor dl_tensor

cdef struct DLExchangeHeader:
    DLVersion version
    DLExchangeHeader* prev_api

cdef struct DLExchangeAPI:
    DLExchangeHeader header
    void* managed_tensor_allocator
    # These two give -1 with an exception set, as the callers look for themselves.
    int (*managed_tensor_from_py_object_no_sync)(void*, DLManagedTensorVersioned**) noexcept
    void* managed_tensor_to_py_object_no_sync
    int (*dltensor_from_py_object_no_sync)(void*, DLTensor*) noexcept  # may be NULL
    int (*current_work_stream)(int32_t device_type, int32_t device_id, void** stream) except -1
