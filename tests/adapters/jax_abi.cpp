// Does src/jax/xla_ffi.h say what the header that JAX ships says? Compiling is the test: every line is an assertion.
#include <cstdio>

#include "src/jax/xla_ffi.h"
#include "xla/ffi/api/c_api.h"

namespace ours = qpi::xla;

// A struct of ours ends with a member of theirs: later ones are not looked at.
#define ENDS_WITH(mine, theirs, member)                                                                           \
  static_assert(sizeof(ours::mine) == (offsetof(theirs, member) + sizeof(theirs::member) + alignof(theirs) - 1) / \
                                          alignof(theirs) * alignof(theirs),                                      \
                #mine)
#define SAME_PLACE(mine, member, theirs, other)                                               \
  static_assert(offsetof(ours::mine, member) == offsetof(theirs, other), #mine "::" #member); \
  static_assert(sizeof(ours::mine::member) == sizeof(theirs::other), #mine "::" #member)
#define SAME_NUMBER(mine, theirs) static_assert(static_cast<int>(ours::mine) == static_cast<int>(theirs), #mine)

static_assert(ours::kMajor == XLA_FFI_API_MAJOR, "another major version");

SAME_NUMBER(DataType::kPred, XLA_FFI_DataType_PRED);
SAME_NUMBER(DataType::kS8, XLA_FFI_DataType_S8);
SAME_NUMBER(DataType::kS32, XLA_FFI_DataType_S32);
SAME_NUMBER(DataType::kU8, XLA_FFI_DataType_U8);
SAME_NUMBER(DataType::kU32, XLA_FFI_DataType_U32);
SAME_NUMBER(DataType::kF16, XLA_FFI_DataType_F16);
SAME_NUMBER(DataType::kF32, XLA_FFI_DataType_F32);
SAME_NUMBER(DataType::kBf16, XLA_FFI_DataType_BF16);
SAME_NUMBER(ArgumentKind::kBuffer, XLA_FFI_ArgType_BUFFER);
SAME_NUMBER(ArgumentKind::kBuffer, XLA_FFI_RetType_BUFFER);
SAME_NUMBER(AttributeKind::kScalar, XLA_FFI_AttrType_SCALAR);
SAME_NUMBER(Stage::kExecute, XLA_FFI_ExecutionStage_EXECUTE);
SAME_NUMBER(Code::kInvalidArgument, XLA_FFI_Error_Code_INVALID_ARGUMENT);
SAME_NUMBER(Code::kResourceExhausted, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
SAME_NUMBER(Code::kUnimplemented, XLA_FFI_Error_Code_UNIMPLEMENTED);
SAME_NUMBER(Code::kInternal, XLA_FFI_Error_Code_INTERNAL);
SAME_NUMBER(ExtensionKind::kMetadata, XLA_FFI_Extension_Metadata);

using MetadataBase = decltype(XLA_FFI_Metadata_Extension::extension_base);  // its name has changed once
SAME_PLACE(Extension, struct_size, MetadataBase, struct_size);
SAME_PLACE(Extension, kind, MetadataBase, type);
SAME_PLACE(Extension, next, MetadataBase, next);
ENDS_WITH(Extension, MetadataBase, next);

SAME_PLACE(Version, struct_size, XLA_FFI_Api_Version, struct_size);
SAME_PLACE(Version, extensions, XLA_FFI_Api_Version, extension_start);
SAME_PLACE(Version, major, XLA_FFI_Api_Version, major_version);
SAME_PLACE(Version, minor, XLA_FFI_Api_Version, minor_version);
static_assert(sizeof(ours::Version) == sizeof(XLA_FFI_Api_Version), "Version is a member of others");

SAME_PLACE(Buffer, struct_size, XLA_FFI_Buffer, struct_size);
SAME_PLACE(Buffer, extensions, XLA_FFI_Buffer, extension_start);
SAME_PLACE(Buffer, dtype, XLA_FFI_Buffer, dtype);
SAME_PLACE(Buffer, data, XLA_FFI_Buffer, data);
SAME_PLACE(Buffer, rank, XLA_FFI_Buffer, rank);
SAME_PLACE(Buffer, dims, XLA_FFI_Buffer, dims);
ENDS_WITH(Buffer, XLA_FFI_Buffer, dims);

SAME_PLACE(Span, data, XLA_FFI_ByteSpan, ptr);
SAME_PLACE(Span, size, XLA_FFI_ByteSpan, len);
SAME_PLACE(Scalar, dtype, XLA_FFI_Scalar, dtype);
SAME_PLACE(Scalar, value, XLA_FFI_Scalar, value);

SAME_PLACE(Buffers, struct_size, XLA_FFI_Args, struct_size);
SAME_PLACE(Buffers, extensions, XLA_FFI_Args, extension_start);
SAME_PLACE(Buffers, size, XLA_FFI_Args, size);
SAME_PLACE(Buffers, kinds, XLA_FFI_Args, types);
SAME_PLACE(Buffers, items, XLA_FFI_Args, args);
SAME_PLACE(Buffers, size, XLA_FFI_Rets, size);
SAME_PLACE(Buffers, kinds, XLA_FFI_Rets, types);
SAME_PLACE(Buffers, items, XLA_FFI_Rets, rets);
static_assert(sizeof(ours::Buffers) == sizeof(XLA_FFI_Args), "Buffers is a member of CallFrame");
static_assert(sizeof(ours::Buffers) == sizeof(XLA_FFI_Rets), "Buffers is a member of CallFrame");

SAME_PLACE(Attributes, struct_size, XLA_FFI_Attrs, struct_size);
SAME_PLACE(Attributes, extensions, XLA_FFI_Attrs, extension_start);
SAME_PLACE(Attributes, size, XLA_FFI_Attrs, size);
SAME_PLACE(Attributes, kinds, XLA_FFI_Attrs, types);
SAME_PLACE(Attributes, names, XLA_FFI_Attrs, names);
SAME_PLACE(Attributes, items, XLA_FFI_Attrs, attrs);
static_assert(sizeof(ours::Attributes) == sizeof(XLA_FFI_Attrs), "Attributes is a member of CallFrame");

SAME_PLACE(CallFrame, struct_size, XLA_FFI_CallFrame, struct_size);
SAME_PLACE(CallFrame, extensions, XLA_FFI_CallFrame, extension_start);
SAME_PLACE(CallFrame, api, XLA_FFI_CallFrame, api);
SAME_PLACE(CallFrame, context, XLA_FFI_CallFrame, ctx);
SAME_PLACE(CallFrame, stage, XLA_FFI_CallFrame, stage);
SAME_PLACE(CallFrame, operands, XLA_FFI_CallFrame, args);
SAME_PLACE(CallFrame, results, XLA_FFI_CallFrame, rets);
SAME_PLACE(CallFrame, attributes, XLA_FFI_CallFrame, attrs);
ENDS_WITH(CallFrame, XLA_FFI_CallFrame, attrs);

SAME_PLACE(ErrorCreate, struct_size, XLA_FFI_Error_Create_Args, struct_size);
SAME_PLACE(ErrorCreate, extensions, XLA_FFI_Error_Create_Args, extension_start);
SAME_PLACE(ErrorCreate, message, XLA_FFI_Error_Create_Args, message);
SAME_PLACE(ErrorCreate, code, XLA_FFI_Error_Create_Args, errc);
ENDS_WITH(ErrorCreate, XLA_FFI_Error_Create_Args, errc);

SAME_PLACE(StreamGet, struct_size, XLA_FFI_Stream_Get_Args, struct_size);
SAME_PLACE(StreamGet, extensions, XLA_FFI_Stream_Get_Args, extension_start);
SAME_PLACE(StreamGet, context, XLA_FFI_Stream_Get_Args, ctx);
SAME_PLACE(StreamGet, stream, XLA_FFI_Stream_Get_Args, stream);
ENDS_WITH(StreamGet, XLA_FFI_Stream_Get_Args, stream);

SAME_PLACE(OrdinalGet, struct_size, XLA_FFI_DeviceOrdinal_Get_Args, struct_size);
SAME_PLACE(OrdinalGet, extensions, XLA_FFI_DeviceOrdinal_Get_Args, extension_start);
SAME_PLACE(OrdinalGet, context, XLA_FFI_DeviceOrdinal_Get_Args, ctx);
SAME_PLACE(OrdinalGet, ordinal, XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);
ENDS_WITH(OrdinalGet, XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);

SAME_PLACE(Api, struct_size, XLA_FFI_Api, struct_size);
SAME_PLACE(Api, extensions, XLA_FFI_Api, extension_start);
SAME_PLACE(Api, version, XLA_FFI_Api, api_version);
SAME_PLACE(Api, internal, XLA_FFI_Api, internal_api);
SAME_PLACE(Api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME_PLACE(Api, stream_get, XLA_FFI_Api, XLA_FFI_Stream_Get);
SAME_PLACE(Api, ordinal_get, XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);
ENDS_WITH(Api, XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);

SAME_PLACE(Metadata, struct_size, XLA_FFI_Metadata, struct_size);
SAME_PLACE(Metadata, version, XLA_FFI_Metadata, api_version);
SAME_PLACE(Metadata, traits, XLA_FFI_Metadata, traits);
SAME_PLACE(MetadataExtension, base, XLA_FFI_Metadata_Extension, extension_base);
SAME_PLACE(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);

int main() {
  std::printf("%d.%d\n", XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
  return 0;
}
