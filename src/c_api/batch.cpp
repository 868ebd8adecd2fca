// Checks on a batch: shapes and strides against the plan, where the arrays lie, and whose memory they are.
#include "batch.h"

#include <cinttypes>
#include <initializer_list>

#include "backends.h"
#include "isv.h"
#include "status.h"

namespace qpi {

namespace {

const char* dtype_name(qpi_dtype dtype) {
  switch (dtype) {
    case QPI_FLOAT16:
      return "float16";
    case QPI_BFLOAT16:
      return "bfloat16";
    default:
      return "float32";
  }
}

size_t dtype_bytes(qpi_dtype dtype) { return dtype == QPI_FLOAT32 ? 4 : 2; }

// ---- where an array lies -----------------------------------------------------------------------------------------

struct Axis {
  int64_t extent, stride;
};

// The bytes that an array touches: [low, high).
struct Extent {
  uintptr_t low, high;
};

qpi_status extent_of(const char* name, const void* pointer, size_t element, std::initializer_list<Axis> axes,
                     Extent* extent) {
  int64_t lowest = 0, highest = 0;
  for (const Axis& axis : axes) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(axis.extent - 1, axis.stride, &reach) ||
        __builtin_add_overflow(reach < 0 ? lowest : highest, reach, reach < 0 ? &lowest : &highest))
      return fail(QPI_ERROR_OVERFLOW, "%s reaches beyond 2^63 elements", name);
  }
  int64_t first = 0, last = 0;
  const auto size = static_cast<int64_t>(element);
  if (__builtin_mul_overflow(lowest, size, &first) || __builtin_add_overflow(highest, int64_t{1}, &last) ||
      __builtin_mul_overflow(last, size, &last))
    return fail(QPI_ERROR_OVERFLOW, "%s reaches beyond 2^63 bytes", name);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  extent->low = address + static_cast<uintptr_t>(first);
  extent->high = address + static_cast<uintptr_t>(last);
  return QPI_SUCCESS;
}

bool overlap(const Extent& a, const Extent& b) { return a.low < b.high && b.low < a.high; }

// Two axes of an output must not reach the same element twice.
bool injective(Axis a, Axis b) {
  if (a.stride < 0) a.stride = -a.stride;
  if (b.stride < 0) b.stride = -b.stride;
  if (a.extent == 1) return b.extent == 1 || b.stride > 0;
  if (b.extent == 1) return a.stride > 0;
  const Axis& inner = a.stride < b.stride ? a : b;
  const Axis& outer = a.stride < b.stride ? b : a;
  return inner.stride > 0 && outer.stride > (inner.extent - 1) * inner.stride;
}

qpi_status check_array(const char* name, const void* pointer, qpi_dtype dtype) {
  if (pointer == nullptr) return fail(QPI_ERROR_POINTER, "%s is NULL", name);
  if (reinterpret_cast<uintptr_t>(pointer) % dtype_bytes(dtype) != 0) {
    return fail(QPI_ERROR_POINTER, "%s is %p; expected the alignment of %s (%zu bytes)", name, pointer,
                dtype_name(dtype), dtype_bytes(dtype));
  }
  return QPI_SUCCESS;
}

}  // namespace

qpi_status check_batch(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, Gradient gradient,
                       const qpi_record* record, qpi_stream_t stream) {
  if (plan == nullptr) return fail(QPI_ERROR_POINTER, "plan is NULL");
  QPI_TRY(check_isv(isv));
  const qpi_problem& p = plan->problem;
  if (isv->device != p.device) {
    return fail(QPI_ERROR_VALUE, "isv.device is %" PRId32 "; expected %" PRId32 ", the plan's", isv->device, p.device);
  }
  QPI_TRY(check_stream(p.device, stream));
  if (batch == nullptr) return fail(QPI_ERROR_POINTER, "batch is NULL");
  if (batch->size != sizeof(qpi_batch)) {
    return fail(QPI_ERROR_VALUE, "batch.size is %zu; expected %zu (fill the struct with qpi_batch_init)", batch->size,
                sizeof(qpi_batch));
  }
  const int64_t rows = batch->rows;
  if (rows < 0) return fail(QPI_ERROR_VALUE, "rows is %" PRId64 "; expected 0 or more", rows);
  if (rows >= QPI_MAX_ROWS)
    return fail(QPI_ERROR_OVERFLOW, "rows is %" PRId64 "; expected less than %" PRId64 " (2^40)", rows, QPI_MAX_ROWS);
  if (rows == 0) return QPI_SUCCESS;

  QPI_TRY(check_array("q_logits", batch->q_logits, p.q_dtype));
  QPI_TRY(check_array("pi_logits", batch->pi_logits, p.pi_dtype));
  if (p.critic == QPI_CRITIC_CATEGORICAL) {
    QPI_TRY(check_array("support", batch->support, QPI_FLOAT32));
  } else if (batch->support != nullptr) {
    return fail(QPI_ERROR_POINTER, "support is %p; expected NULL, because critic is QPI_CRITIC_QUANTILE",
                static_cast<const void*>(batch->support));
  }
  if (gradient == Gradient::kNeeded) QPI_TRY(check_array("pi_grad", batch->pi_grad, p.grad_dtype));
  if (batch->row_weights != nullptr) QPI_TRY(check_array("row_weights", batch->row_weights, QPI_FLOAT32));
  if (batch->grad_scale != nullptr) QPI_TRY(check_array("grad_scale", batch->grad_scale, QPI_FLOAT32));

  const FlightRing flight = isv_flight(*isv);
  struct Input {
    const char* name;
    const void* pointer;
    Extent extent;
  };
  Input inputs[] = {{"q_logits", batch->q_logits, {}},
                    {"pi_logits", batch->pi_logits, {}},
                    {"support", batch->support, {}},
                    {"legal_actions", batch->legal_actions, {}},
                    {"row_weights", batch->row_weights, {}},
                    {"grad_scale", batch->grad_scale, {}},
                    {"isv", isv->slots, {}},
                    {"workspace", isv->workspace, {}},
                    {"flight", flight.records, {}}};
  QPI_TRY(extent_of("q_logits", batch->q_logits, dtype_bytes(p.q_dtype),
                    {{rows, p.q_stride[0]}, {p.actions, p.q_stride[1]}, {p.atoms, p.q_stride[2]}}, &inputs[0].extent));
  QPI_TRY(extent_of("pi_logits", batch->pi_logits, dtype_bytes(p.pi_dtype),
                    {{rows, p.pi_stride[0]}, {p.actions, p.pi_stride[1]}}, &inputs[1].extent));
  QPI_TRY(extent_of("support", batch->support, sizeof(float),
                    {{p.actions, p.support_stride[0]}, {p.atoms, p.support_stride[1]}}, &inputs[2].extent));
  QPI_TRY(extent_of("legal_actions", batch->legal_actions, 1,
                    {{rows, p.legal_stride[0]}, {p.actions, p.legal_stride[1]}}, &inputs[3].extent));
  QPI_TRY(extent_of("row_weights", batch->row_weights, sizeof(float), {{rows, p.weight_stride}}, &inputs[4].extent));
  QPI_TRY(extent_of("grad_scale", batch->grad_scale, sizeof(float), {}, &inputs[5].extent));
  QPI_TRY(extent_of("isv", isv->slots, sizeof(uint32_t), {{isv->words, 1}}, &inputs[6].extent));
  QPI_TRY(extent_of("workspace", isv->workspace, 1, {{static_cast<int64_t>(sizeof(Workspace)), 1}}, &inputs[7].extent));
  QPI_TRY(extent_of("flight", flight.records, sizeof(qpi_flight), {{static_cast<int64_t>(flight.capacity), 1}},
                    &inputs[8].extent));

  if (gradient == Gradient::kNeeded) {
    const Axis row_axis{rows, p.grad_stride[0]}, action_axis{p.actions, p.grad_stride[1]};
    Extent output{};
    QPI_TRY(extent_of("pi_grad", batch->pi_grad, dtype_bytes(p.grad_dtype), {row_axis, action_axis}, &output));
    if (!injective(row_axis, action_axis)) {
      return fail(QPI_ERROR_POINTER,
                  "pi_grad has strides (%" PRId64 ", %" PRId64 ") elements for %" PRId64 " rows and %" PRId64
                  " actions: some elements would be written more than once",
                  row_axis.stride, action_axis.stride, rows, p.actions);
    }
    for (const Input& input : inputs) {
      if (input.pointer != nullptr && overlap(output, input.extent))
        return fail(QPI_ERROR_POINTER, "pi_grad overlaps %s; expected memory of its own", input.name);
    }
  }
  if (record != nullptr) {
    Extent output{};
    QPI_TRY(extent_of("record", record, sizeof(qpi_record), {}, &output));
    for (const Input& input : inputs) {
      if (input.pointer != nullptr && overlap(output, input.extent))
        return fail(QPI_ERROR_POINTER, "record overlaps %s; expected memory of its own", input.name);
    }
  }
  return QPI_SUCCESS;
}

qpi_status check_memory(const qpi_plan& plan, const qpi_isv& isv, const qpi_batch& batch, const qpi_record* record) {
  if (plan.problem.device == QPI_DEVICE_CPU) return QPI_SUCCESS;
  if (batch.rows == 0 && record == nullptr) return QPI_SUCCESS;
  const gpu::NamedPointer only_record[] = {{"record", record}};
  if (batch.rows == 0) return gpu::check_pointers(plan.problem.device, only_record, 1);
  const gpu::NamedPointer pointers[] = {
      {"q_logits", batch.q_logits},
      {"pi_logits", batch.pi_logits},
      {"support", batch.support},
      {"pi_grad", record == nullptr ? batch.pi_grad : nullptr},
      {"record", record},
      {"legal_actions", batch.legal_actions},
      {"row_weights", batch.row_weights},
      {"grad_scale", batch.grad_scale},
      {"isv.slots", isv.slots},
      {"isv.workspace", isv.workspace},
      {"isv.flight", isv_flight(isv).records},
  };
  return gpu::check_pointers(plan.problem.device, pointers, sizeof pointers / sizeof pointers[0]);
}

qpi_status check_accumulate(const qpi_plan& plan) {
  if (plan.problem.kl_stat != QPI_KL_STAT_ROW0) return QPI_SUCCESS;
  return fail(QPI_ERROR_UNSUPPORTED,
              "kl_stat is QPI_KL_STAT_ROW0, which is defined for one call alone; use a step, or QPI_KL_STAT_MEAN");
}

}  // namespace qpi
