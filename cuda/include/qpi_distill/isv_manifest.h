/* The ISV manifest: every number of the distillation loop, written down once.
 *
 * C, Cython, Python, the README's table and the checks on the host all take their names, types, defaults and ranges
 * from this list. A new slot goes to the end: the native layout follows the order of the list.
 *
 *   X(name, type, role, default, low, high, unit, meaning)
 *
 * type   F32      one slot, float
 *        U32      one slot, unsigned bits or a code
 *        U64      two slots, low word first: a 64-bit counter
 * role   PARAM    set by the host
 *        STATE    moved by the loop and saved with it
 *        OUTPUT   written by the loop for people
 *        A layout may lack any of them: the workspace then holds it, from its default on.
 * low, high       the closed range a host setter accepts
 */
#ifndef QPI_DISTILL_ISV_MANIFEST_H
#define QPI_DISTILL_ISV_MANIFEST_H

/* clang-format off */
#define QPI_ISV_MANIFEST(X)                                                                                            \
  X(lam,                F32, STATE,  0.1,    0.0,     3.0e38,  "1",     "weight of the distillation term; 0 switches it off for good") \
  X(tau,                F32, STATE,  1.0,    0.0,     INFINITY,"value", "temperature of the target softmax(E_Q / tau); +inf is the uniform target") \
  X(kl_ema,             F32, STATE,  0.0,    0.0,     3.0e38,  "nat",   "moving average of the batch KL(target || policy)") \
  X(kl_target,          F32, PARAM,  0.05,   1.0e-30, 3.0e38,  "nat",   "KL the control law steers to") \
  X(kl_alpha,           F32, PARAM,  0.05,   1.0e-30, 1.0,     "1",     "share of the newest observation in kl_ema") \
  X(lam_min,            F32, PARAM,  0.05,   1.0e-30, 3.0e38,  "1",     "floor of lam while it is not 0") \
  X(lam_max,            F32, PARAM,  1.0,    1.0e-30, 3.0e38,  "1",     "ceiling of lam") \
  X(kl_tolerance,       F32, PARAM,  3.0,    1.0,     3.0e38,  "1",     "dead zone: kl_target / kl_tolerance to kl_target * kl_tolerance") \
  X(lam_up,             F32, PARAM,  1.2,    1.0,     3.0e38,  "1",     "factor on lam when kl_ema is above the dead zone") \
  X(lam_down,           F32, PARAM,  0.998,  1.0e-30, 1.0,     "1",     "factor on lam when kl_ema is below the dead zone") \
  X(tau_min,            F32, PARAM,  1.0e-3, 1.0e-30, 3.0e38,  "value", "floor of the temperature in use") \
  X(kl_row_max,         F32, PARAM,  100.0,  1.0e-30, 3.0e38,  "nat",   "bound on one row's share of the statistic") \
  X(min_std,            F32, PARAM,  1.0e-3, 1.0e-30, 3.0e38,  "value", "floor of the standard deviation that values are divided by") \
  X(value_alpha,        F32, PARAM,  0.05,   1.0e-30, 1.0,     "1",     "share of the newest observation in the variance behind value_std") \
  X(value_std,          F32, STATE,  0.0,    0.0,     3.0e38,  "value", "running standard deviation of the action values within a row") \
  X(observations,       U64, STATE,  0,      0.0,     1.8e19,  "count", "commits that went into kl_ema") \
  X(value_observations, U64, STATE,  0,      0.0,     1.8e19,  "count", "commits that went into value_std") \
  X(kl_last,            F32, OUTPUT, 0.0,    0.0,     3.0e38,  "nat",   "batch KL of the last commit that had rows") \
  X(rows_last,          U64, OUTPUT, 0,      0.0,     1.8e19,  "count", "rows in the statistic of the last commit") \
  X(skipped_last,       U64, OUTPUT, 0,      0.0,     1.8e19,  "count", "rows left out whole in the last commit") \
  X(clipped_last,       U64, OUTPUT, 0,      0.0,     1.8e19,  "count", "rows whose KL was over kl_row_max in the last commit") \
  X(skipped_rows,       U64, OUTPUT, 0,      0.0,     1.8e19,  "count", "rows left out whole since the start") \
  X(clipped_rows,       U64, OUTPUT, 0,      0.0,     1.8e19,  "count", "rows whose KL was over kl_row_max since the start") \
  X(faults,             U32, OUTPUT, 0,      0.0,     4.3e9,   "bits",  "sticky bits, one per kind of device value that made no sense (qpi_fault)") \
  X(reason,             U32, OUTPUT, 0,      0.0,     4.3e9,   "code",  "what the last commit or control call did with lam, and why (qpi_reason)") \
  X(lam_off,            U32, PARAM,  0,      0.0,     1.0,     "flag",  "1: no gradient, and lam keeps its value for when it is 0 again") \
  X(lam_law,            U32, PARAM,  0,      0.0,     QPI_LAM_LAW_COUNT - 1, "code", "control law of lam (qpi_lam_law)") \
  X(law_warmup,         U32, PARAM,  0,      0.0,     4.2e9,   "count", "observations before a law moves anything; one is always needed") \
  X(ziegler_gain,       F32, PARAM,  0.1,    0.0,     3.0e38,  "1",     "law ziegler: gain on the clipped error") \
  X(ziegler_clip,       F32, PARAM,  0.2,    1.0e-30, 3.0e38,  "1",     "law ziegler: bound on the relative error") \
  X(dual_rate,          F32, PARAM,  0.01,   0.0,     3.0e38,  "1",     "law log_dual: step of log lam for a relative error of 1") \
  X(dual_clip,          F32, PARAM,  1.0,    1.0e-30, 3.0e38,  "1",     "law log_dual: bound on the relative error") \
  X(pi_gain,            F32, PARAM,  0.2,    0.0,     3.0e38,  "1",     "law log_pi: proportional gain on the log error") \
  X(pi_rate,            F32, PARAM,  0.005,  0.0,     3.0e38,  "1",     "law log_pi: integral gain on the log error, a commit") \
  X(pi_clip,            F32, PARAM,  2.0,    1.0e-30, 3.0e38,  "1",     "law log_pi: bound on the log error") \
  X(pi_slew,            F32, PARAM,  0.18,   1.0e-30, 3.0e38,  "1",     "law log_pi: most that log lam moves a commit") \
  X(lam_from,           F32, PARAM,  0.2,    0.0,     3.0e38,  "1",     "laws linear and cosine: lam at the start") \
  X(lam_to,             F32, PARAM,  0.08,   0.0,     3.0e38,  "1",     "laws linear and cosine: lam at the end") \
  X(lam_steps,          U32, PARAM,  60000,  1.0,     4.2e9,   "count", "laws linear and cosine: observations from start to end") \
  X(lam_memory,         F32, STATE,  0.0,   -3.0e38,  3.0e38,  "1",     "what the law of lam remembers: log_pi its integral") \
  X(lam_left,           F32, STATE,  0.0,    0.0,     3.0e38,  "1",     "lam as a law with a memory left it; where it differs, that law starts anew from lam") \
  X(tau_law,            U32, PARAM,  0,      0.0,     QPI_TAU_LAW_COUNT - 1, "code", "control law of tau (qpi_tau_law)") \
  X(tau_max,            F32, PARAM,  1000.0, 1.0e-30, 3.0e38,  "value", "ceiling of a tau that a law moves") \
  X(tau_from,           F32, PARAM,  1.0,    0.0,     3.0e38,  "value", "laws linear and cosine: tau at the start") \
  X(tau_to,             F32, PARAM,  0.1,    0.0,     3.0e38,  "value", "laws linear and cosine: tau at the end") \
  X(tau_steps,          U32, PARAM,  60000,  1.0,     4.2e9,   "count", "laws linear and cosine: observations from start to end") \
  X(entropy_goal,       F32, PARAM,  0.5,    0.0,     1.0,     "1",     "law target_entropy: wanted entropy of the target, as a share of that of the uniform policy") \
  X(entropy_rate,       F32, PARAM,  0.01,   0.0,     3.0e38,  "1",     "law target_entropy: step of log tau for an error of 1") \
  X(entropy_tolerance,  F32, PARAM,  0.05,   0.0,     1.0,     "1",     "law target_entropy: error that is still reported as in band") \
  X(mpo_epsilon,        F32, PARAM,  0.1,    1.0e-30, 3.0e38,  "nat",   "law mpo_dual: wanted KL(target || prior)") \
  X(mpo_rate,           F32, PARAM,  0.01,   0.0,     3.0e38,  "1",     "law mpo_dual: step of log tau for a relative error of 1") \
  X(mpo_clip,           F32, PARAM,  1.0,    1.0e-30, 3.0e38,  "1",     "law mpo_dual: bound on the relative error") \
  X(target_entropy,     F32, STATE, -1.0,   -1.0,     3.0e38,  "nat",   "batch mean entropy of the target; negative: not measured") \
  X(uniform_entropy,    F32, STATE, -1.0,   -1.0,     3.0e38,  "nat",   "batch mean of log(legal actions); negative: not measured") \
  X(policy_entropy,     F32, STATE, -1.0,   -1.0,     3.0e38,  "nat",   "batch mean entropy of the policy; negative: not measured") \
  X(agreement,          F32, STATE, -1.0,   -1.0,     1.0,     "1",     "share of rows where target and policy prefer the same action; negative: not measured") \
  X(prior_kl,           F32, STATE, -1.0,   -1.0,     3.0e38,  "nat",   "batch mean KL(target || prior); negative: not measured") \
  X(tau_reason,         U32, OUTPUT, 0,      0.0,     4.3e9,   "code",  "what the last commit or control call did with tau, and why (qpi_reason)") \
  X(commits,            U64, OUTPUT, 0,      0.0,     1.8e19,  "count", "commits so far, with or without rows") \
  X(loss_last,          F32, STATE, -1.0,   -1.0,     3.0e38,  "1",     "batch mean of the divergence that the gradient lowers; negative: not measured") \
  X(pi_at_qstar,         F32, STATE, -1.0,   -1.0,     1.0,     "1",     "batch mean of the policy's probability of the target's best action; negative: not measured") \
  X(overlap,            F32, STATE, -1.0,   -1.0,     1.0,     "1",     "batch mean of sum_a min(target, policy); negative: not measured")
/* clang-format on */

#endif
