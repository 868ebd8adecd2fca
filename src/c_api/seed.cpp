// The seed kernels' semantics for C callers.
#include <cinttypes>
#include <initializer_list>

#include "backends.h"
#include "status.h"

using namespace qpi;

namespace {

qpi_status check_seed(int32_t device, qpi_stream_t stream) {
  if (device < QPI_DEVICE_CPU) {
    return fail(QPI_ERROR_VALUE, "device is %" PRId32 "; expected QPI_DEVICE_CPU (-1) or the ordinal of a GPU", device);
  }
  return check_stream(device, stream);
}

qpi_status check_floats(const char* name, const void* pointer) {
  if (pointer == nullptr) return fail(QPI_ERROR_POINTER, "%s is NULL", name);
  if (reinterpret_cast<uintptr_t>(pointer) % sizeof(float) != 0)
    return fail(QPI_ERROR_POINTER, "%s is %p; expected 4-byte alignment", name, pointer);
  return QPI_SUCCESS;
}

struct Floats {
  const char* name;
  const float* begin;
  int64_t count;
};

bool overlap(const Floats& a, const Floats& b) {
  const auto begin_a = reinterpret_cast<uintptr_t>(a.begin), begin_b = reinterpret_cast<uintptr_t>(b.begin);
  return begin_a < begin_b + static_cast<uintptr_t>(b.count) * sizeof(float) &&
         begin_b < begin_a + static_cast<uintptr_t>(a.count) * sizeof(float);
}

}  // namespace

extern "C" {

qpi_status qpi_seed_distill_grad(const float* q_logits, const float* pi_logits, const float* atom_supports, float* isv,
                                 float* pi_grad_logits, int64_t rows, int32_t device, qpi_stream_t stream) {
  QPI_TRY(check_seed(device, stream));
  if (rows < 0) return fail(QPI_ERROR_VALUE, "rows is %" PRId64 "; expected 0 or more", rows);
  if (rows >= QPI_MAX_ROWS)
    return fail(QPI_ERROR_OVERFLOW, "rows is %" PRId64 "; expected less than %" PRId64 " (2^40)", rows, QPI_MAX_ROWS);
  if (rows == 0) return QPI_SUCCESS;
  QPI_TRY(check_floats("q_logits", q_logits));
  QPI_TRY(check_floats("pi_logits", pi_logits));
  QPI_TRY(check_floats("atom_supports", atom_supports));
  QPI_TRY(check_floats("isv", isv));
  QPI_TRY(check_floats("pi_grad_logits", pi_grad_logits));
  const Floats output{"pi_grad_logits", pi_grad_logits, rows * QPI_SEED_ACTIONS};
  for (const Floats& input :
       {Floats{"q_logits", q_logits, rows * QPI_SEED_ACTIONS * QPI_SEED_ATOMS},
        Floats{"pi_logits", pi_logits, rows * QPI_SEED_ACTIONS}, Floats{"atom_supports", atom_supports, QPI_SEED_ATOMS},
        Floats{"isv", isv, QPI_SEED_BUS_WORDS}}) {
    if (overlap(output, input))
      return fail(QPI_ERROR_POINTER, "pi_grad_logits overlaps %s; expected memory of its own", input.name);
  }
  return backend_seed_grad(device, q_logits, pi_logits, atom_supports, isv, pi_grad_logits, rows, stream);
}

qpi_status qpi_seed_lambda_controller(float* isv, int32_t device, qpi_stream_t stream) {
  QPI_TRY(check_seed(device, stream));
  QPI_TRY(check_floats("isv", isv));
  return backend_seed_controller(device, isv, stream);
}

}  // extern "C"
