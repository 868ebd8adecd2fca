/* What the flight recorder keeps of a commit: slots, under their own names.
 *
 *   X(slot, type)
 *
 * type   the slot's own; the 8-byte ones first, and an even number of the others, so that nothing is padding
 */
#ifndef QPI_DISTILL_FLIGHT_MANIFEST_H
#define QPI_DISTILL_FLIGHT_MANIFEST_H

/* clang-format off */
#define QPI_FLIGHT_MANIFEST(X)                                                                                         \
  X(commits,         U64) /* the record's number; 0: never written */                                                  \
  X(observations,    U64)                                                                                              \
  X(rows_last,       U64)                                                                                              \
  X(skipped_last,    U64)                                                                                              \
  X(clipped_last,    U64)                                                                                              \
  X(lam,             F32)                                                                                              \
  X(tau,             F32)                                                                                              \
  X(kl_last,         F32)                                                                                              \
  X(kl_ema,          F32)                                                                                              \
  X(kl_target,       F32)                                                                                              \
  X(value_std,       F32)                                                                                              \
  X(target_entropy,  F32)                                                                                              \
  X(uniform_entropy, F32)                                                                                              \
  X(policy_entropy,  F32)                                                                                              \
  X(agreement,       F32)                                                                                              \
  X(prior_kl,        F32)                                                                                              \
  X(loss_last,       F32)                                                                                              \
  X(pi_at_qstar,      F32)                                                                                              \
  X(lam_law,         U32)                                                                                              \
  X(tau_law,         U32)                                                                                              \
  X(reason,          U32)                                                                                              \
  X(tau_reason,      U32)                                                                                              \
  X(faults,          U32)
/* clang-format on */

#endif
