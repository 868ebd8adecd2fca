#include "plans.h"

#include <cstring>
#include <mutex>
#include <new>
#include <vector>

namespace qpi {
namespace jax {

namespace {

static_assert(sizeof(ProblemKey) == 2 * 8 + 18 * 4, "keys are compared as bytes: no padding");

struct Entry {
  ProblemKey key;
  qpi_plan* plan;
};

struct Cache {
  std::mutex mutex;
  std::vector<Entry> entries;
};

// Never destroyed: threads of XLA may still be at work while the process exits.
Cache& cache() {
  static Cache* const only = new Cache;
  return *only;
}

qpi_problem problem_of(const ProblemKey& key) {
  qpi_problem problem;
  qpi_problem_init(&problem);
  problem.device = key.device;
  problem.actions = key.actions;
  problem.atoms = key.atoms;
  problem.q_dtype = static_cast<qpi_dtype>(key.q_dtype);
  problem.pi_dtype = static_cast<qpi_dtype>(key.pi_dtype);
  problem.grad_dtype = static_cast<qpi_dtype>(key.grad_dtype);
  problem.reduction = static_cast<qpi_reduction>(key.reduction);
  problem.mode = static_cast<qpi_mode>(key.mode);
  problem.value_scale = static_cast<qpi_value_scale>(key.value_scale);
  problem.critic = static_cast<qpi_critic>(key.critic);
  problem.target = static_cast<qpi_target>(key.target);
  problem.divergence = static_cast<qpi_divergence>(key.divergence);
  problem.control_stat = static_cast<qpi_control_stat>(key.control_stat);
  problem.flags = key.summary != 0 ? QPI_SUMMARY : 0u;
  if (key.support_per_action != 0) problem.support_stride[0] = key.atoms;
  problem.illegal_below = key.illegal_below;
  problem.target_epsilon = key.target_epsilon;
  problem.divergence_beta = key.divergence_beta;
  problem.policy_temperature = key.policy_temperature;
  return problem;
}

}  // namespace

qpi_status find_plan(const ProblemKey& key, const qpi_plan** plan) {
  Cache& plans = cache();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  for (const Entry& entry : plans.entries) {
    if (std::memcmp(&entry.key, &key, sizeof key) == 0) {
      *plan = entry.plan;
      return QPI_SUCCESS;
    }
  }
  const qpi_problem problem = problem_of(key);
  qpi_plan* made = nullptr;
  const qpi_status status = qpi_plan_create(&problem, &made);
  if (status != QPI_SUCCESS) return status;
  try {
    plans.entries.push_back({key, made});
  } catch (const std::bad_alloc&) {
    qpi_plan_destroy(made);
    return QPI_ERROR_MEMORY;
  }
  *plan = made;
  return QPI_SUCCESS;
}

}  // namespace jax
}  // namespace qpi
