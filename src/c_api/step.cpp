// The step and its parts: check a batch, describe the work, hand it to the backend.
#include <cinttypes>

#include "backends.h"
#include "batch.h"
#include "status.h"
#include "work.h"

namespace qpi {

namespace {

qpi_status run_batch(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, CommitParts parts,
                     qpi_stream_t stream) {
  QPI_TRY(check_batch(plan, isv, batch, Gradient::kNeeded, nullptr, stream));
  if (asks_each_time(*plan)) QPI_TRY(check_memory(*plan, *isv, *batch, nullptr));
  if (batch->rows == 0) return QPI_SUCCESS;
  RowsArgs rows;
  FinishArgs finish;
  describe_work(*plan, *isv, *batch, parts, &rows, &finish);
  return run(*plan, rows, finish, stream);
}

}  // namespace

}  // namespace qpi

using namespace qpi;

extern "C" {

void qpi_batch_init(qpi_batch* batch) {
  if (batch == nullptr) return;
  *batch = qpi_batch{};
  batch->size = sizeof(qpi_batch);
}

qpi_status qpi_step(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_stream_t stream) {
  return run_batch(plan, isv, batch, CommitParts::kObserveAndControl, stream);
}

qpi_status qpi_distill_grad(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_stream_t stream) {
  return run_batch(plan, isv, batch, CommitParts::kObserve, stream);
}

qpi_status qpi_accumulate(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_stream_t stream) {
  if (plan != nullptr) QPI_TRY(check_accumulate(*plan));
  return run_batch(plan, isv, batch, CommitParts::kNone, stream);
}

qpi_status qpi_measure(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_record* record,
                       qpi_stream_t stream) {
  if (record == nullptr) return fail(QPI_ERROR_POINTER, "record is NULL");
  if (reinterpret_cast<uintptr_t>(record) % alignof(qpi_record) != 0) {
    return fail(QPI_ERROR_POINTER, "record is %p; expected %zu-byte alignment", static_cast<void*>(record),
                alignof(qpi_record));
  }
  QPI_TRY(check_batch(plan, isv, batch, Gradient::kNone, record, stream));
  if (asks_each_time(*plan)) QPI_TRY(check_memory(*plan, *isv, *batch, record));
  if (batch->rows == 0) return backend_discard(plan->problem.device, record, stream);
  RowsArgs rows;
  FinishArgs finish;
  describe_work(*plan, *isv, *batch, CommitParts::kNone, &rows, &finish);
  rows.pi_grad = nullptr;
  rows.write = false;
  finish.measured = record;
  return run(*plan, rows, finish, stream);
}

qpi_status qpi_batch_check(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch) {
  QPI_TRY(check_batch(plan, isv, batch, Gradient::kNeeded, nullptr, nullptr));
  return check_memory(*plan, *isv, *batch, nullptr);
}

qpi_status qpi_memory_check(int32_t device, const char* name, const void* memory) {
  if (name == nullptr) return fail(QPI_ERROR_POINTER, "name is NULL");
  if (device < QPI_DEVICE_CPU) {
    return fail(QPI_ERROR_VALUE, "device is %" PRId32 "; expected the ordinal of a GPU, or -1 for the CPU", device);
  }
  if (memory == nullptr) return fail(QPI_ERROR_POINTER, "%s is NULL", name);
  if (device == QPI_DEVICE_CPU) return QPI_SUCCESS;
  const gpu::NamedPointer pointer{name, memory};
  return gpu::check_pointers(device, &pointer, 1);
}

}  // extern "C"
