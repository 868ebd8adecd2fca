/* The registry of control laws: C, Cython, Python, the README's table and the tests take the laws from these lists.
 *
 * A law is one line here and one function of the same name in cuda/math/lam_laws.h or tau_laws.h. Its number is its
 * place in the list, so a new law goes to the end. Its numbers are slots of their own (isv_manifest.h), with the
 * defaults of its source.
 *
 *   X(name, input, formula, source)
 *
 * input   what drives it (qpi_law_input): the checks on that, and on its band, are common to all laws
 *
 * Every law clamps into [lam_min, lam_max] or [tau_min, tau_max]. In the formulas: clip(x) is to the law's own bound,
 * error = KL / goal - 1, t = (observations - law_warmup) / steps within [0, 1].
 */
#ifndef QPI_DISTILL_LAWS_H
#define QPI_DISTILL_LAWS_H

/* clang-format off */
#define QPI_LAM_LAWS(X)                                                                                                \
  X(bounded_step, KL, "above the dead zone lam * lam_up, below it lam * lam_down", "the seed kernels; with other numbers Schulman et al. 2017, arXiv:1707.06347, section 4") \
  X(fixed, NOTHING, "lam", "-")                                                                                        \
  X(ziegler, KL, "lam * (1 + ziegler_gain * clip(error))", "Ziegler et al. 2019, arXiv:1909.08593, section 2.2")       \
  X(log_dual, KL, "log lam + dual_rate * clip(error)", "dual ascent on log lam, as MPO's: Abdolmaleki et al. 2018, arXiv:1806.06920") \
  X(log_pi, KL, "log lam = I + pi_gain * e, I + pi_rate * e as far as bounds and pi_slew let lam go; e = clip(log(KL / goal))", "Stooke et al. 2020, arXiv:2007.03964, on log lam") \
  X(linear, OBSERVATIONS, "lam_from + (lam_to - lam_from) * t", "-")                                                   \
  X(cosine, OBSERVATIONS, "lam_from + (lam_to - lam_from) * (1 - cos(pi t)) / 2", "Loshchilov and Hutter 2017, arXiv:1608.03983")

#define QPI_TAU_LAWS(X)                                                                                                \
  X(fixed, NOTHING, "tau", "-")                                                                                        \
  X(linear, OBSERVATIONS, "tau_from + (tau_to - tau_from) * t", "-")                                                   \
  X(cosine, OBSERVATIONS, "tau_from + (tau_to - tau_from) * (1 - cos(pi t)) / 2", "Loshchilov and Hutter 2017, arXiv:1608.03983") \
  X(target_entropy, ENTROPY, "log tau + entropy_rate * (entropy_goal - target_entropy / uniform_entropy)", "Haarnoja et al. 2018, arXiv:1812.05905, section 5, on the entropy of the target") \
  X(mpo_dual, PRIOR_KL, "log tau + mpo_rate * clip(error)", "Abdolmaleki et al. 2018, arXiv:1806.06920: descent on the dual, d/d tau = mpo_epsilon - KL")

/* Laws of lam with the numbers of their source, and bounds for those whose source has none.
 *
 *   X(name, lam_law, values, source), values a row of V(slot, value)
 */
#define QPI_PRESETS(X, V)                                                                                              \
  X(seed, bounded_step, V(lam_up, 1.2) V(lam_down, 0.998) V(kl_tolerance, 3.0) V(lam_min, 0.05) V(lam_max, 1.0), "the seed kernels") \
  X(symmetric, bounded_step, V(lam_up, 1.2) V(lam_down, 1.0 / 1.2) V(kl_tolerance, 1.5) V(lam_min, 0.001) V(lam_max, 1.0), "the seed kernels before they were mended") \
  X(schulman, bounded_step, V(lam_up, 2.0) V(lam_down, 0.5) V(kl_tolerance, 1.5) V(lam_min, 1.0e-4) V(lam_max, 10.0), "Schulman et al. 2017, arXiv:1707.06347, section 4, which has no bounds") \
  X(ziegler, ziegler, V(ziegler_gain, 0.1) V(ziegler_clip, 0.2) V(lam_min, 0.001) V(lam_max, 10.0), "Ziegler et al. 2019, arXiv:1909.08593, which has no bounds") \
  X(log_dual, log_dual, V(dual_rate, 0.01) V(dual_clip, 1.0) V(lam_min, 0.001) V(lam_max, 10.0), "rate of Acme's MPO duals")  \
  X(log_pi, log_pi, V(pi_gain, 0.2) V(pi_rate, 0.005) V(pi_clip, 2.0) V(pi_slew, 0.18) V(lam_min, 0.001) V(lam_max, 10.0), "slew limit: the seed kernels' factor 1.2 a commit")
/* clang-format on */

#endif
