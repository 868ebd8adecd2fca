#include "call.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace qpi {
namespace jax {

namespace {

xla::Code code_of(qpi_status status) {
  switch (status) {
    case QPI_ERROR_MEMORY:
      return xla::Code::kResourceExhausted;
    case QPI_ERROR_UNSUPPORTED:
    case QPI_ERROR_NO_DEVICE:
      return xla::Code::kUnimplemented;
    case QPI_ERROR_CUDA:
      return xla::Code::kInternal;
    default:
      return xla::Code::kInvalidArgument;
  }
}

template <class T>
xla::Error* read_number(const xla::CallFrame& frame, const char* name, xla::DataType dtype, T* value) {
  const size_t length = std::strlen(name);
  for (int64_t i = 0; i < frame.attributes.size; ++i) {
    const xla::Span& found = *frame.attributes.names[i];
    if (found.size != length || std::memcmp(found.data, name, length) != 0) continue;
    if (frame.attributes.kinds[i] != xla::AttributeKind::kScalar) break;
    const auto& scalar = *static_cast<const xla::Scalar*>(frame.attributes.items[i]);
    if (scalar.dtype != dtype) break;
    std::memcpy(value, scalar.value, sizeof *value);
    return nullptr;
  }
  return fail(frame, xla::Code::kInvalidArgument, "attribute %s is missing; expected one number of XLA's type %d", name,
              static_cast<int>(dtype));
}

}  // namespace

bool answer_metadata(const xla::CallFrame& frame) {
  const xla::Extension* extension = frame.extensions;
  if (extension == nullptr || extension->kind != xla::ExtensionKind::kMetadata) return false;
  // What is used here is the same in all these versions, so that the handler speaks the one that it is asked in.
  xla::Metadata* metadata = reinterpret_cast<const xla::MetadataExtension*>(extension)->metadata;
  metadata->version = {sizeof(xla::Version), nullptr, xla::kMajor,
                       std::min<int32_t>(frame.api->version.minor, xla::kNewestMinor)};
  metadata->traits = 0;
  return true;
}

xla::Error* fail(const xla::CallFrame& frame, xla::Code code, const char* format, ...) {
  char message[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  xla::ErrorCreate args{sizeof(xla::ErrorCreate), nullptr, message, code};
  return frame.api->error_create(&args);
}

xla::Error* answer(const xla::CallFrame& frame, qpi_status status) {
  if (status == QPI_SUCCESS) return nullptr;
  if (status == QPI_ERROR_MEMORY) return fail(frame, code_of(status), "qpi_distill: the host is out of memory");
  return fail(frame, code_of(status), "qpi_distill: %s", qpi_last_error_message());
}

xla::Error* check_frame(const xla::CallFrame& frame, int64_t operands, int64_t results) {
  if (frame.stage != xla::Stage::kExecute) {
    return fail(frame, xla::Code::kUnimplemented, "qpi_distill: stage %d of a call; expected %d, the execution",
                static_cast<int>(frame.stage), static_cast<int>(xla::Stage::kExecute));
  }
  if (frame.operands.size != operands || frame.results.size != results) {
    return fail(frame, xla::Code::kInvalidArgument,
                "qpi_distill: %" PRId64 " operands and %" PRId64 " results; expected %" PRId64 " and %" PRId64,
                frame.operands.size, frame.results.size, operands, results);
  }
  for (const xla::Buffers* buffers : {&frame.operands, &frame.results}) {
    for (int64_t i = 0; i < buffers->size; ++i) {
      if (buffers->kinds[i] != xla::ArgumentKind::kBuffer)
        return fail(frame, xla::Code::kInvalidArgument, "qpi_distill: operand or result %" PRId64 " is no buffer", i);
    }
  }
  return nullptr;
}

int64_t elements(const xla::Buffer& buffer) {
  int64_t count = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) count *= buffer.dims[i];
  return count;
}

xla::Error* read_attribute(const xla::CallFrame& frame, const char* name, int32_t* value) {
  return read_number(frame, name, xla::DataType::kS32, value);
}

xla::Error* read_attribute(const xla::CallFrame& frame, const char* name, float* value) {
  return read_number(frame, name, xla::DataType::kF32, value);
}

xla::Error* read_dtype(const xla::CallFrame& frame, const char* name, const xla::Buffer& buffer, int32_t* dtype) {
  switch (buffer.dtype) {
    case xla::DataType::kF32:
      *dtype = QPI_FLOAT32;
      return nullptr;
    case xla::DataType::kF16:
      *dtype = QPI_FLOAT16;
      return nullptr;
    case xla::DataType::kBf16:
      *dtype = QPI_BFLOAT16;
      return nullptr;
    default:
      return fail(frame, xla::Code::kInvalidArgument,
                  "qpi_distill: %s is of XLA's type %d; expected float32, float16 or bfloat16", name,
                  static_cast<int>(buffer.dtype));
  }
}

xla::Error* find_gpu(const xla::CallFrame& frame, Place* place) {
  if (frame.api->struct_size < sizeof(xla::Api))
    return fail(frame, xla::Code::kUnimplemented, "qpi_distill: this XLA does not tell the device of a call");
  xla::StreamGet stream{sizeof(xla::StreamGet), nullptr, frame.context, nullptr};
  if (xla::Error* error = frame.api->stream_get(&stream)) return error;
  xla::OrdinalGet ordinal{sizeof(xla::OrdinalGet), nullptr, frame.context, 0};
  if (xla::Error* error = frame.api->ordinal_get(&ordinal)) return error;
  *place = {ordinal.ordinal, static_cast<qpi_stream_t>(stream.stream)};
  return nullptr;
}

}  // namespace jax
}  // namespace qpi
