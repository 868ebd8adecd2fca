// Plans: check a problem, resolve its defaults, let the backend prepare.
#include "plan.h"

#include <cinttypes>
#include <cstdio>
#include <new>

#include "status.h"

namespace qpi {

namespace {

qpi_status check_enum(const char* name, int value, int last, const char* expected) {
  if (value >= 0 && value <= last) return QPI_SUCCESS;
  return fail(QPI_ERROR_TYPE, "%s is %d; expected %s", name, value, expected);
}

qpi_status check_size(const char* name, int64_t value, int64_t most) {
  if (value < 1) return fail(QPI_ERROR_VALUE, "%s is %" PRId64 "; expected 1 to %" PRId64, name, value, most);
  if (value > most) return fail(QPI_ERROR_OVERFLOW, "%s is %" PRId64 "; expected 1 to %" PRId64, name, value, most);
  return QPI_SUCCESS;
}

void resolve(int64_t* stride, int64_t packed) {
  if (*stride == QPI_PACKED) *stride = packed;
}

// Does this stride matter, and is it the packed one? An axis with one entry may have any stride.
bool stride_is(int64_t stride, int64_t packed, int64_t extent) { return extent == 1 || stride == packed; }

// The family's options, and combinations of them that make no sense.
qpi_status check_family(const qpi_problem& p) {
  QPI_TRY(check_enum("critic", p.critic, QPI_CRITIC_QUANTILE, "QPI_CRITIC_CATEGORICAL or QPI_CRITIC_QUANTILE"));
  QPI_TRY(check_enum("target", p.target, QPI_TARGET_GREEDY, "QPI_TARGET_BOLTZMANN or QPI_TARGET_GREEDY"));
  QPI_TRY(check_enum("divergence", p.divergence, QPI_DIVERGENCE_TOTAL_VARIATION, "a qpi_divergence"));
  QPI_TRY(check_enum("control_stat", p.control_stat, QPI_CONTROL_STAT_LOSS,
                     "QPI_CONTROL_STAT_KL or QPI_CONTROL_STAT_LOSS"));
  const auto shown = [](float x) { return static_cast<double>(x); };
  if (!(p.target_epsilon >= 0.0f && p.target_epsilon <= 1.0f))
    return fail(QPI_ERROR_VALUE, "target_epsilon is %g; expected 0 to 1", shown(p.target_epsilon));
  if (p.target_epsilon > 0.0f && p.target != QPI_TARGET_GREEDY) {
    return fail(QPI_ERROR_VALUE, "target_epsilon is %g, but target is not QPI_TARGET_GREEDY; expected 0",
                shown(p.target_epsilon));
  }
  if (!(p.divergence_beta > 0.0f && p.divergence_beta < 1.0f)) {
    return fail(QPI_ERROR_VALUE, "divergence_beta is %g; expected a number between 0 and 1 (at 0 there is no gradient)",
                shown(p.divergence_beta));
  }
  if (!(p.policy_temperature >= 0x1p-20f && p.policy_temperature <= 0x1p20f)) {
    return fail(QPI_ERROR_VALUE, "policy_temperature is %g; expected 2^-20 to 2^20", shown(p.policy_temperature));
  }
  if (p.divergence == QPI_DIVERGENCE_REVERSE_KL && p.target == QPI_TARGET_GREEDY && p.target_epsilon == 0.0f) {
    return fail(
        QPI_ERROR_VALUE,
        "divergence is QPI_DIVERGENCE_REVERSE_KL and target_epsilon is 0: KL(policy || target) is infinite where "
        "the target is 0; expected target_epsilon > 0");
  }
  return QPI_SUCCESS;
}

qpi_status check_problem(const qpi_problem& p) {
  constexpr const char* kDtypes = "QPI_FLOAT32, QPI_FLOAT16 or QPI_BFLOAT16";
  if (p.device < QPI_DEVICE_CPU) {
    return fail(QPI_ERROR_VALUE, "device is %" PRId32 "; expected QPI_DEVICE_CPU (-1) or the ordinal of a GPU",
                p.device);
  }
  QPI_TRY(check_size("actions", p.actions, QPI_MAX_ACTIONS));
  QPI_TRY(check_size("atoms", p.atoms, QPI_MAX_ATOMS));
  QPI_TRY(check_enum("q_dtype", p.q_dtype, QPI_BFLOAT16, kDtypes));
  QPI_TRY(check_enum("pi_dtype", p.pi_dtype, QPI_BFLOAT16, kDtypes));
  QPI_TRY(check_enum("grad_dtype", p.grad_dtype, QPI_BFLOAT16, kDtypes));
  if (p.grad_dtype != QPI_FLOAT32 && p.grad_dtype != p.pi_dtype) {
    return fail(QPI_ERROR_TYPE, "grad_dtype is %d; expected QPI_FLOAT32 (0) or pi_dtype (%d)",
                static_cast<int>(p.grad_dtype), static_cast<int>(p.pi_dtype));
  }
  if (p.reduction != QPI_REDUCTION_SUM && p.reduction != QPI_REDUCTION_MEAN) {
    return fail(QPI_ERROR_VALUE,
                "reduction is %d; expected QPI_REDUCTION_SUM or QPI_REDUCTION_MEAN (there is no default: the choice "
                "changes the strength by a factor of the batch size)",
                static_cast<int>(p.reduction));
  }
  QPI_TRY(check_enum("mode", p.mode, QPI_MODE_WRITE, "QPI_MODE_ADD or QPI_MODE_WRITE"));
  QPI_TRY(check_enum("value_scale", p.value_scale, QPI_VALUE_SCALE_RUNNING_STD,
                     "QPI_VALUE_SCALE_NONE or QPI_VALUE_SCALE_RUNNING_STD"));
  QPI_TRY(check_enum("kl_stat", p.kl_stat, QPI_KL_STAT_ROW0, "QPI_KL_STAT_MEAN or QPI_KL_STAT_ROW0"));
  if (!(p.illegal_below < INFINITY)) {
    return fail(QPI_ERROR_VALUE, "illegal_below is %g; expected a number below infinity",
                static_cast<double>(p.illegal_below));
  }
  if ((p.flags & ~(QPI_CHECK_POINTERS | QPI_SUMMARY)) != 0) {
    return fail(QPI_ERROR_VALUE, "flags is 0x%" PRIx32 "; expected QPI_CHECK_POINTERS, QPI_SUMMARY, both or 0",
                p.flags);
  }
  if (p.max_blocks < 0) return fail(QPI_ERROR_VALUE, "max_blocks is %" PRId32 "; expected 0 or more", p.max_blocks);
  if (p.max_threads < 0) return fail(QPI_ERROR_VALUE, "max_threads is %" PRId32 "; expected 0 or more", p.max_threads);
  return check_family(p);
}

const char* gpu_kernel_name(qpi_kernel kernel) {
  if (kernel == QPI_KERNEL_BLOCK) return "block";
  return kernel == QPI_KERNEL_TILE ? "tile" : "stream";
}

qpi_status plan_cpu(const qpi_problem& p, cpu::Plan* plan) {
  switch (p.kernel) {
    case QPI_KERNEL_AUTO:
      plan->isa = cpu::best_isa();
      break;
    case QPI_KERNEL_CPU_BASELINE:
      plan->isa = cpu::Isa::kBaseline;
      break;
    case QPI_KERNEL_CPU_AVX2:
      plan->isa = cpu::Isa::kAvx2;
      break;
    case QPI_KERNEL_CPU_AVX512:
      plan->isa = cpu::Isa::kAvx512;
      break;
    default:
      return fail(QPI_ERROR_TYPE, "kernel is %d, which does not run on the CPU", static_cast<int>(p.kernel));
  }
  if (!cpu::isa_supported(plan->isa)) {
    return fail(QPI_ERROR_UNSUPPORTED, "kernel is %d (%s), which this processor or build does not have",
                static_cast<int>(p.kernel), cpu::isa_name(plan->isa));
  }
  plan->max_threads = p.max_threads > 0 ? p.max_threads : cpu::usable_cores();
  return QPI_SUCCESS;
}

qpi_status plan_gpu(const qpi_problem& p, gpu::Plan* plan) {
  if (p.kernel != QPI_KERNEL_AUTO && p.kernel != QPI_KERNEL_STREAM && p.kernel != QPI_KERNEL_TILE &&
      p.kernel != QPI_KERNEL_BLOCK)
    return fail(QPI_ERROR_TYPE, "kernel is %d, which does not run on a GPU", static_cast<int>(p.kernel));
  // Rows may be as many as they like, so their strides always count.
  const bool packed = stride_is(p.q_stride[2], 1, p.atoms) && stride_is(p.q_stride[1], p.atoms, p.actions) &&
                      p.q_stride[0] == p.actions * p.atoms && stride_is(p.pi_stride[1], 1, p.actions) &&
                      p.pi_stride[0] == p.actions && stride_is(p.grad_stride[1], 1, p.actions) &&
                      p.grad_stride[0] == p.actions;
  return gpu::plan_create(p, packed, plan);
}

}  // namespace

}  // namespace qpi

using namespace qpi;

extern "C" {

void qpi_problem_init(qpi_problem* problem) {
  if (problem == nullptr) return;
  *problem = qpi_problem{};
  problem->size = sizeof(qpi_problem);
  problem->device = QPI_DEVICE_CPU;
  problem->illegal_below = -INFINITY;
  for (int64_t& stride : problem->q_stride) stride = QPI_PACKED;
  for (int64_t& stride : problem->pi_stride) stride = QPI_PACKED;
  for (int64_t& stride : problem->grad_stride) stride = QPI_PACKED;
  for (int64_t& stride : problem->legal_stride) stride = QPI_PACKED;
  for (int64_t& stride : problem->support_stride) stride = QPI_PACKED;
  problem->weight_stride = QPI_PACKED;
  problem->divergence_beta = 0.5f;
  problem->policy_temperature = 1.0f;
}

qpi_status qpi_plan_create(const qpi_problem* problem, qpi_plan** plan) {
  if (plan == nullptr) return fail(QPI_ERROR_POINTER, "plan is NULL");
  *plan = nullptr;
  if (problem == nullptr) return fail(QPI_ERROR_POINTER, "problem is NULL");
  if (problem->size != sizeof(qpi_problem)) {
    return fail(QPI_ERROR_VALUE, "problem.size is %zu; expected %zu (fill the struct with qpi_problem_init)",
                problem->size, sizeof(qpi_problem));
  }
  qpi_plan made{};
  made.problem = *problem;
  qpi_problem& p = made.problem;
  QPI_TRY(check_problem(p));

  resolve(&p.q_stride[0], p.actions * p.atoms);
  resolve(&p.q_stride[1], p.atoms);
  resolve(&p.q_stride[2], 1);
  for (int64_t* stride : {p.pi_stride, p.grad_stride, p.legal_stride}) {
    resolve(&stride[0], p.actions);
    resolve(&stride[1], 1);
  }
  resolve(&p.support_stride[0], 0);
  resolve(&p.support_stride[1], 1);
  resolve(&p.weight_stride, 1);

  QPI_TRY(p.device == QPI_DEVICE_CPU ? plan_cpu(p, &made.cpu) : plan_gpu(p, &made.gpu));
  *plan = new (std::nothrow) qpi_plan(made);
  if (*plan == nullptr) return fail(QPI_ERROR_MEMORY, "no memory for a plan (%zu bytes)", sizeof(qpi_plan));
  return QPI_SUCCESS;
}

void qpi_plan_destroy(qpi_plan* plan) { delete plan; }

qpi_status qpi_plan_describe(const qpi_plan* plan, int64_t rows, char* text, size_t capacity, size_t* length) {
  if (plan == nullptr) return fail(QPI_ERROR_POINTER, "plan is NULL");
  if (text == nullptr && capacity > 0) return fail(QPI_ERROR_POINTER, "text is NULL");
  if (rows < 0) return fail(QPI_ERROR_VALUE, "rows is %" PRId64 "; expected 0 or more", rows);
  if (rows >= QPI_MAX_ROWS)
    return fail(QPI_ERROR_OVERFLOW, "rows is %" PRId64 "; expected less than %" PRId64, rows, QPI_MAX_ROWS);
  const qpi_problem& p = plan->problem;
  int written = 0;
  if (rows == 0) {
    written = std::snprintf(text, capacity, "nothing runs: no rows");
  } else if (p.device == QPI_DEVICE_CPU) {
    written = std::snprintf(text, capacity, "CPU, %s, %d thread(s); %s", cpu::isa_name(plan->cpu.isa),
                            cpu::threads_for(plan->cpu, rows, p.actions, p.atoms),
                            p.kernel == QPI_KERNEL_AUTO ? "the widest instruction set of this processor" : "asked for");
  } else {
    const gpu::Choice choice = gpu::choose(plan->gpu, p, rows);
    written = std::snprintf(text, capacity,
                            "GPU %d, %s kernel, %d block(s) of %d threads, %zu bytes of shared memory%s; %s", p.device,
                            gpu_kernel_name(choice.kernel), choice.blocks, choice.how.threads, choice.how.shared_bytes,
                            choice.whole_step   ? ", the whole step"
                            : plan->gpu.overlap ? ", then the finish kernel, overlapped"
                                                : ", then the finish kernel",
                            choice.why);
  }
  if (length != nullptr) *length = static_cast<size_t>(written);
  return QPI_SUCCESS;
}

}  // extern "C"
