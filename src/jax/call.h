// Reading a call of XLA's: its buffers by position, its attributes by name, its device and stream; and answering it.
#pragma once

#include <qpi_distill.h>

#include "xla_ffi.h"

namespace qpi {
namespace jax {

// Where a call runs: the CPU, with no stream, or a GPU.
struct Place {
  int32_t device;
  qpi_stream_t stream;
};

// Answers XLA's question about versions, which comes as a call, once for each handler. Returns whether it was one.
bool answer_metadata(const xla::CallFrame& frame);

xla::Error* fail(const xla::CallFrame& frame, xla::Code code, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// Null for a success; else the library's own message.
xla::Error* answer(const xla::CallFrame& frame, qpi_status status);

// That the call has this many operands and results, all of them buffers, and comes at the stage of execution.
xla::Error* check_frame(const xla::CallFrame& frame, int64_t operands, int64_t results);

inline const xla::Buffer& operand(const xla::CallFrame& frame, int position) {
  return *static_cast<const xla::Buffer*>(frame.operands.items[position]);
}
inline const xla::Buffer& result(const xla::CallFrame& frame, int position) {
  return *static_cast<const xla::Buffer*>(frame.results.items[position]);
}

int64_t elements(const xla::Buffer& buffer);

// Stores the value of an attribute of one number: int32_t or float.
xla::Error* read_attribute(const xla::CallFrame& frame, const char* name, int32_t* value);
xla::Error* read_attribute(const xla::CallFrame& frame, const char* name, float* value);

// The library's dtype of a buffer of real numbers.
xla::Error* read_dtype(const xla::CallFrame& frame, const char* name, const xla::Buffer& buffer, int32_t* dtype);

// Device and stream of a call on a GPU, from XLA.
xla::Error* find_gpu(const xla::CallFrame& frame, Place* place);

}  // namespace jax
}  // namespace qpi
