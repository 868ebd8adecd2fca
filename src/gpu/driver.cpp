#include "driver.h"

#include <cinttypes>

#ifndef QPI_CUDA_ARCHITECTURES
#define QPI_CUDA_ARCHITECTURES "unknown"
#endif

namespace qpi::gpu {

namespace {

constexpr int kOldestDriver = 13000;  // CUDA 13.0, driver 580

template <class Function>
bool find(const char* name, Function* function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return false;
  }
  *function = reinterpret_cast<Function>(address);
  return true;
}

// Is there a driver that this build can use? Creates no context.
qpi_status check_driver() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) {
    cudaGetLastError();
    return fail(QPI_ERROR_NO_DEVICE, "no NVIDIA driver was found (libcuda.so.1)");
  }
  if (version < kOldestDriver) {
    return fail(QPI_ERROR_NO_DEVICE, "the NVIDIA driver supports CUDA %d.%d; this library needs driver 580 (CUDA 13.0)",
                version / 1000, version % 1000 / 10);
  }
  return QPI_SUCCESS;
}

}  // namespace

qpi_status cuda_failed(int error, const char* what) {
  cudaGetLastError();
  const auto code = static_cast<cudaError_t>(error);
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction ||
      code == cudaErrorUnsupportedPtxVersion) {
    int device = -1, major = 0, minor = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    return fail(QPI_ERROR_NO_DEVICE,
                "GPU %d has compute capability %d.%d, and this library holds no kernels for it; it was built for %s",
                device, major, minor, QPI_CUDA_ARCHITECTURES);
  }
  return fail(QPI_ERROR_CUDA, "%s: %s (%s)", what, cudaGetErrorName(code), cudaGetErrorString(code));
}

const Driver& driver() {
  static const Driver instance = [] {
    Driver d;
    d.loaded = find("cuInit", &d.init) && find("cuCtxGetCurrent", &d.get_current) &&
               find("cuCtxSetCurrent", &d.set_current) && find("cuCtxGetDevice", &d.get_device) &&
               find("cuPointerGetAttributes", &d.pointer_attributes);
    return d;
  }();
  return instance;
}

qpi_status check_device(int32_t device) {
  QPI_TRY(check_driver());
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    cudaGetLastError();
    return fail(QPI_ERROR_NO_DEVICE, "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES?)");
  }
  if (error != cudaSuccess) {
    cudaGetLastError();
    return fail(QPI_ERROR_NO_DEVICE, "the GPUs cannot be listed: %s (%s)", cudaGetErrorName(error),
                cudaGetErrorString(error));
  }
  if (device >= count)
    return fail(QPI_ERROR_NO_DEVICE, "device is %" PRId32 "; this process sees %d GPU(s)", device, count);
  return QPI_SUCCESS;
}

DeviceGuard::~DeviceGuard() {
  if (restore_) driver().set_current(before_);
}

qpi_status DeviceGuard::enter(int32_t device) {
  const Driver& d = driver();
  if (!d.loaded) {
    QPI_TRY(check_driver());
    return fail(QPI_ERROR_NO_DEVICE, "the NVIDIA driver lacks the functions that this library needs");
  }
  CUresult result = d.get_current(&before_);
  if (result == CUDA_ERROR_NOT_INITIALIZED) {
    QPI_TRY(check_device(device));
    result = d.init(0);
    if (result == CUDA_SUCCESS) result = d.get_current(&before_);
  }
  if (result != CUDA_SUCCESS) return fail(QPI_ERROR_CUDA, "cuCtxGetCurrent: error %d", static_cast<int>(result));
  if (before_ != nullptr) {
    CUdevice current = -1;
    if (d.get_device(&current) == CUDA_SUCCESS && current == device) return QPI_SUCCESS;
  }
  QPI_TRY(check_device(device));
  restore_ = true;
  QPI_CUDA_TRY(cudaSetDevice(device), "cudaSetDevice");
  return QPI_SUCCESS;
}

}  // namespace qpi::gpu
