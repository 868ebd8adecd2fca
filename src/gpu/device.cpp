// The calls: enqueueing, and what the device has to say about pointers and itself.
#include <cinttypes>
#include <cstdio>

#include "choose.h"
#include "driver.h"

#ifndef QPI_CUDA_ARCHITECTURES
#define QPI_CUDA_ARCHITECTURES "unknown"
#endif

namespace qpi::gpu {

qpi_status run(const Plan& plan, int32_t device, const Choice& choice, const RowsArgs& rows, const FinishArgs& finish,
               qpi_stream_t stream) {
  DeviceGuard guard;
  QPI_TRY(guard.enter(device));
  const RowsLaunch launch = launch_of(choice.kernel, choice.blocks, choice.how, choice.whole_step);
  QPI_CUDA_TRY(launch_rows(rows, finish, launch, stream), "launching the rows kernel");
  if (choice.whole_step) return QPI_SUCCESS;
  if (finish.summary_slots != nullptr) QPI_CUDA_TRY(launch_summary(finish, stream), "launching the summary kernel");
  QPI_CUDA_TRY(launch_finish(rows.isv, finish, plan.overlap, stream), "launching the finish kernel");
  return QPI_SUCCESS;
}

namespace {
// One launch on `device`.
template <class Launch>
qpi_status launch_on(int32_t device, const char* what, Launch launch) {
  DeviceGuard guard;
  QPI_TRY(guard.enter(device));
  QPI_CUDA_TRY(launch(), what);
  return QPI_SUCCESS;
}
}  // namespace

qpi_status commit(int32_t device, const IsvWords& isv, qpi_record* record, qpi_stream_t stream) {
  return launch_on(device, "launching the commit kernel",
                   [&] { return launch_commit(isv, record, CommitParts::kObserveAndControl, stream); });
}
qpi_status control(int32_t device, const IsvWords& isv, qpi_stream_t stream) {
  return launch_on(device, "launching the control kernel", [&] { return launch_control(isv, stream); });
}
qpi_status discard(int32_t device, qpi_record* record, qpi_stream_t stream) {
  return launch_on(device, "launching the discard kernel", [&] { return launch_discard(record, stream); });
}
qpi_status clear_faults(int32_t device, const IsvWords& isv, qpi_stream_t stream) {
  return launch_on(device, "launching the clear-faults kernel", [&] { return launch_clear_faults(isv, stream); });
}
qpi_status reset(int32_t device, const IsvWords& isv, Workspace* workspace, ResetParts parts, qpi_stream_t stream) {
  return launch_on(device, "launching the reset kernel", [&] { return launch_reset(isv, workspace, parts, stream); });
}
qpi_status seed_grad(int32_t device, const float* q_logits, const float* pi_logits, const float* atom_supports,
                     float* isv, float* pi_grad_logits, int64_t rows, qpi_stream_t stream) {
  return launch_on(device, "launching the seed gradient kernel", [&] {
    return launch_seed_grad(q_logits, pi_logits, atom_supports, isv, pi_grad_logits, rows, stream);
  });
}
qpi_status seed_controller(int32_t device, float* isv, qpi_stream_t stream) {
  return launch_on(device, "launching the seed controller", [&] { return launch_seed_controller(isv, stream); });
}

qpi_status check_pointers(int32_t device, const NamedPointer* pointers, int count) {
  DeviceGuard guard;
  QPI_TRY(guard.enter(device));
  for (int i = 0; i < count; ++i) {
    if (pointers[i].pointer == nullptr) continue;
    // One question to the driver; the runtime's cudaPointerGetAttributes asks several. Of memory that CUDA does not
    // know, the type stays 0.
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    unsigned type = 0;
    int ordinal = -1;
    unsigned managed = 0;  // the driver writes four bytes
    void* answers[] = {&type, &ordinal, &managed};
    const auto address = reinterpret_cast<CUdeviceptr>(pointers[i].pointer);
    // The numbers of CUresult are those of cudaError_t.
    QPI_CUDA_TRY(static_cast<int>(driver().pointer_attributes(3, asked, answers, address)), pointers[i].name);
    if (managed != 0) continue;
    if (type != CU_MEMORYTYPE_DEVICE) {
      return fail(QPI_ERROR_POINTER, "%s is %p, which is host memory; expected memory of GPU %" PRId32,
                  pointers[i].name, pointers[i].pointer, device);
    }
    if (ordinal != device) {
      return fail(QPI_ERROR_POINTER, "%s is %p, memory of GPU %d; expected memory of GPU %" PRId32, pointers[i].name,
                  pointers[i].pointer, ordinal, device);
    }
  }
  return QPI_SUCCESS;
}

namespace {
// Fit for a JSON string.
std::string without_quotes(std::string text) {
  for (char& c : text) {
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return text;
}
}  // namespace

std::string describe() {
  const qpi_status status = check_device(0);
  std::string text = R"("built": true, "kernels": ["stream", "tile", "block"], "architectures": [)";
  // "75-real;80-real;...;120" -> a list of strings
  const char* separator = "";
  std::string item;
  for (const char* c = QPI_CUDA_ARCHITECTURES;; ++c) {
    if (*c == ';' || *c == ',' || *c == '\0') {
      if (!item.empty()) text += separator + ("\"" + item + "\"");
      separator = ", ";
      item.clear();
      if (*c == '\0') break;
    } else {
      item += *c;
    }
  }
  int driver_version = 0, runtime_version = 0;
  cudaDriverGetVersion(&driver_version);
  cudaRuntimeGetVersion(&runtime_version);
  char line[640];
  std::snprintf(line, sizeof line, "], \"cuda_runtime\": %d, \"cuda_driver\": %d, \"usable\": %s, \"reason\": \"%s\"",
                runtime_version, driver_version, status == QPI_SUCCESS ? "true" : "false",
                status == QPI_SUCCESS ? "" : without_quotes(qpi_last_error_message()).c_str());
  text += line;
  text += ", \"devices\": [";
  int count = 0;
  if (status == QPI_SUCCESS) cudaGetDeviceCount(&count);
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    std::snprintf(line, sizeof line,
                  "%s{\"ordinal\": %d, \"name\": \"%s\", \"compute_capability\": \"%d.%d\", \"multiprocessors\": %d, "
                  "\"memory_bytes\": %zu}",
                  device == 0 ? "" : ", ", device, properties.name, properties.major, properties.minor,
                  properties.multiProcessorCount, properties.totalGlobalMem);
    text += line;
  }
  cudaGetLastError();
  return text + "]";
}

}  // namespace qpi::gpu
