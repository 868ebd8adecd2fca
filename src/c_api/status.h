// Statuses and the calling thread's last message.
#pragma once

#include <qpi_distill.h>

namespace qpi {

// Stores the printf-style message for this thread and returns `status`.
qpi_status fail(qpi_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Puts this thread's message back at the end of a scope whose failures are not the caller's.
class KeepMessage {
 public:
  KeepMessage();
  ~KeepMessage();
  KeepMessage(const KeepMessage&) = delete;
  KeepMessage& operator=(const KeepMessage&) = delete;

 private:
  char before_[512];
};

}  // namespace qpi

// Leave the enclosing function with the status of `expression` unless it succeeded.
#define QPI_TRY(expression)                                                              \
  do {                                                                                   \
    if (const qpi_status status_ = (expression); status_ != QPI_SUCCESS) return status_; \
  } while (0)
