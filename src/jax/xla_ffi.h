// The part of XLA's foreign function interface that the handlers here use, declared anew, so that building needs no
// XLA.
//
// These are facts of a stable C ABI, of which versions 0.3 and 0.4 were compared: XLA fills the structs below, appends
// members, and does not move the ones that are here. Where JAX is installed, tests/adapters/jax_abi.cpp compares sizes,
// offsets and numbers with the header that it ships.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qpi {
namespace xla {

constexpr int kMajor = 0;
constexpr int kNewestMinor = 4;  // the newest version these declarations were compared with

enum class DataType : int32_t {
  kPred = 1,
  kS8 = 2,
  kS32 = 4,
  kU8 = 6,
  kU32 = 8,
  kF16 = 10,
  kF32 = 11,
  kBf16 = 16,
};
enum class ArgumentKind : int32_t { kBuffer = 1 };
enum class AttributeKind : int32_t { kScalar = 3 };
enum class Stage : int32_t { kExecute = 3 };
enum class Code : int32_t { kInvalidArgument = 3, kResourceExhausted = 8, kUnimplemented = 12, kInternal = 13 };

struct Error;    // opaque
struct Context;  // opaque

enum class ExtensionKind : int32_t { kMetadata = 1 };
struct Extension {
  size_t struct_size;
  ExtensionKind kind;
  Extension* next;
};

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major, minor;
};

// ---- what a call consists of ----------------------------------------------------------------------------------------

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;  // of the device; may be null where there are no elements
  int64_t rank;
  int64_t* dims;
};

struct Span {
  const char* data;
  size_t size;
};

struct Scalar {
  DataType dtype;
  void* value;
};

// Operands, and in the same form results.
struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  ArgumentKind* kinds;
  void** items;  // a Buffer each
};

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  AttributeKind* kinds;
  Span** names;
  void** items;  // a Scalar each, where the kind says so
};

struct Api;

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  Context* context;
  Stage stage;
  Buffers operands;
  Buffers results;
  Attributes attributes;
};

// ---- what XLA offers to a handler -----------------------------------------------------------------------------------

struct ErrorCreate {
  size_t struct_size;
  Extension* extensions;
  const char* message;  // copied
  Code code;
};

struct StreamGet {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  void* stream;  // out: a CUstream
};

struct OrdinalGet {
  size_t struct_size;
  Extension* extensions;
  Context* context;
  int32_t ordinal;  // out
};

using Function = void();

// A table of functions. The handlers call three of them.
struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorCreate*);
  Function* between_create_and_stream[3];
  Error* (*stream_get)(StreamGet*);
  Function* between_stream_and_ordinal[12];
  Error* (*ordinal_get)(OrdinalGet*);
};

// ---- what a handler says of itself ----------------------------------------------------------------------------------

struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

}  // namespace xla
}  // namespace qpi
