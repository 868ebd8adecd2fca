// The driver, the runtime's errors, and the caller's context.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>
#include <qpi_distill.h>

#include "../c_api/status.h"

namespace qpi::gpu {

// Reports a runtime error and takes it off this library's copy of the runtime.
qpi_status cuda_failed(int error, const char* what);

#define QPI_CUDA_TRY(expression, what)                                                  \
  do {                                                                                  \
    if (const int error_ = (expression); error_ != 0) return cuda_failed(error_, what); \
  } while (0)

// The driver's functions, reached through the runtime.
struct Driver {
  CUresult (*init)(unsigned) = nullptr;
  CUresult (*get_current)(CUcontext*) = nullptr;
  CUresult (*set_current)(CUcontext) = nullptr;
  CUresult (*get_device)(CUdevice*) = nullptr;
  CUresult (*pointer_attributes)(unsigned, CUpointer_attribute*, void**, CUdeviceptr) = nullptr;
  bool loaded = false;
};
const Driver& driver();

// Is there a driver that this build can use, and does it show this GPU? Creates no context.
qpi_status check_device(int32_t device);

// Makes `device` current and puts the caller's context back. Costs two driver calls where it is current already.
class DeviceGuard {
 public:
  DeviceGuard() = default;
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  ~DeviceGuard();

  qpi_status enter(int32_t device);

 private:
  CUcontext before_ = nullptr;
  bool restore_ = false;
};

// Loading a module is fine while some stream of the process captures, if the thread says so.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace qpi::gpu
