// Statuses and the calling thread's last message.
#pragma once

#include <qpi_distill.h>

namespace qpi {

// Stores the printf-style message for this thread and returns `status`.
qpi_status fail(qpi_status status, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace qpi

// Leave the enclosing function with the status of `expression` unless it succeeded.
#define QPI_TRY(expression)                                                              \
  do {                                                                                   \
    if (const qpi_status status_ = (expression); status_ != QPI_SUCCESS) return status_; \
  } while (0)
