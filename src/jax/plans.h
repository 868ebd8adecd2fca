// Plans for the handlers: made when a problem is first met, and kept for good.
#pragma once

#include <qpi_distill.h>

namespace qpi {
namespace jax {

// What distinguishes one problem of the handlers from another. Arrays are packed. No padding: keys compare as bytes.
struct ProblemKey {
  int64_t actions, atoms;
  int32_t device, q_dtype, pi_dtype, grad_dtype;
  int32_t reduction, mode, value_scale, critic, target, divergence, control_stat, summary;
  int32_t support_per_action;
  float illegal_below, target_epsilon, divergence_beta, policy_temperature;
  int32_t reserved;
};

// The plan of a problem. An executable may outlive everything but the process (it may even come from another process,
// out of a compilation cache), so that plans are found by what they are for and never destroyed.
qpi_status find_plan(const ProblemKey& key, const qpi_plan** plan);

}  // namespace jax
}  // namespace qpi
