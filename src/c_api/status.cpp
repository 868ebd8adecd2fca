#include "status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace qpi {

namespace {
thread_local char last_message[512] = "";
}

KeepMessage::KeepMessage() { std::memcpy(before_, last_message, sizeof before_); }
KeepMessage::~KeepMessage() { std::memcpy(last_message, before_, sizeof before_); }

qpi_status fail(qpi_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_message, sizeof last_message, format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace qpi

extern "C" {

int32_t qpi_version(void) { return QPI_VERSION_CODE; }

int32_t qpi_abi(void) { return QPI_ABI; }

const char* qpi_last_error_message(void) { return qpi::last_message; }

const char* qpi_status_name(qpi_status status) {
  switch (status) {
    case QPI_SUCCESS:
      return "QPI_SUCCESS";
    case QPI_ERROR_VALUE:
      return "QPI_ERROR_VALUE";
    case QPI_ERROR_TYPE:
      return "QPI_ERROR_TYPE";
    case QPI_ERROR_OVERFLOW:
      return "QPI_ERROR_OVERFLOW";
    case QPI_ERROR_POINTER:
      return "QPI_ERROR_POINTER";
    case QPI_ERROR_NO_DEVICE:
      return "QPI_ERROR_NO_DEVICE";
    case QPI_ERROR_CUDA:
      return "QPI_ERROR_CUDA";
    case QPI_ERROR_MEMORY:
      return "QPI_ERROR_MEMORY";
    case QPI_ERROR_UNSUPPORTED:
      return "QPI_ERROR_UNSUPPORTED";
  }
  return "unknown status";
}

}  // extern "C"
