// The formulas of one row, once.
//
//   E[a]      = sum_z softmax(q[a,:])[z] * (support[z] - middle)      a softmax over actions does not see the shift,
//                                                                     and float32 keeps the digits of the differences
//   target    = softmax(E / (tau * std)),  policy = softmax(x)        over the legal actions
//   KL        = sum_a target * (log target - log policy)
//             = cross / mass_t + log mass_p - log mass_t              with u = (E - max E) / (tau * std),
//                                                                     x' = x - max x, mass_t = sum e^u,
//                                                                     mass_p = sum e^x', cross = sum e^u (u - x')
//   grad[a]  += lam * scale * w * (policy[a] - target[a])
//
// Sums over atoms and over actions are kept in kPartials strided partial sums (item i goes to partial i mod kPartials)
// and combined as (0 + 1) + (2 + 3). That order is part of the contract: one thread with four accumulators, four
// threads with one each, and a SIMD pack of rows all give the same bits.
#pragma once

#include "exp_log.h"

namespace qpi {
inline namespace QPI_ISA {

constexpr int kPartials = 4;

// ---- atoms: q_logits of one action -> its expected value ---------------------------------------------------------

template <class F>
struct AtomMaximum {
  F highest = splat<F>(-kInfinity);  // NaN if any logit is

  QPI_FN void add(F logit) { highest = lane_max_or_nan(highest, logit); }
  QPI_FN void merge(const AtomMaximum& other) { highest = lane_max_or_nan(highest, other.highest); }
};

template <class F>
struct AtomSums {
  F mass{};
  F value{};

  QPI_FN void add(F logit, F highest, F centred_atom) {
    const F e = exp_clamped(logit - highest);
    mass = mass + e;
    value = lane_fma(e, centred_atom, value);
  }
  QPI_FN void merge(const AtomSums& other) {
    mass = mass + other.mass;
    value = value + other.value;
  }
};

// The expected value, or a mark that later steps read: NaN = the critic's logits are bad (NaN, +inf or no finite atom),
// +inf = the support is.
template <class F>
QPI_FN F expected_value(const AtomMaximum<F>& maximum, const AtomSums<F>& sums) {
  const F value = sums.value / sums.mass;
  const F marked = is_finite(value) ? value : splat<F>(kInfinity);
  return is_finite(maximum.highest) ? marked : splat<F>(__builtin_nanf(""));
}

// The point that values are measured from. Any would do; the middle keeps the numbers small. Of per-action supports it
// is the first's, and a bad value there must not reach the others.
QPI_FN float support_middle(float first, float last) {
  const float middle = 0.5f * first + 0.5f * last;
  return is_finite(middle) ? middle : 0.0f;
}

// ---- actions: expected values and policy logits -> target, policy, KL ---------------------------------------------

// An illegal action is x = -inf from here on.
template <class F>
QPI_FN F legal_logit(F logit, Mask<F> allowed, float illegal_below) {
  return (allowed & !(logit <= illegal_below)) ? logit : splat<F>(-kInfinity);
}
template <class F>
QPI_FN Mask<F> is_legal(F x) {
  return !(x == -kInfinity);  // a NaN is a legal action with a bad logit
}

template <class F>
struct ActionMaximum {
  F value = splat<F>(-kInfinity);
  F logit = splat<F>(-kInfinity);
  F value_sum{};
  F legal{};  // count
  Mask<F> usable = F{} == F{};
  Mask<F> support_usable = F{} == F{};

  QPI_FN void add(F e, F x) {
    const Mask<F> here = is_legal(x);
    value = lane_max(value, here ? e : splat<F>(-kInfinity));
    logit = lane_max(logit, x);
    value_sum = value_sum + (here ? e : splat<F>(0.0f));
    legal = legal + (here ? splat<F>(1.0f) : splat<F>(0.0f));
    usable = usable & ((!here) | ((e == e) & (x < kInfinity)));
    support_usable = support_usable & ((!here) | (!(e == kInfinity)));
  }
  QPI_FN void merge(const ActionMaximum& other) {
    value = lane_max(value, other.value);
    logit = lane_max(logit, other.logit);
    value_sum = value_sum + other.value_sum;
    legal = legal + other.legal;
    usable = usable & other.usable;
    support_usable = support_usable & other.support_usable;
  }
};

template <class F>
struct ActionVariance {
  F squares{};

  QPI_FN void add(F e, F x, F mean) {
    const F deviation = is_legal(x) ? e - mean : splat<F>(0.0f);
    squares = lane_fma(deviation, deviation, squares);
  }
  QPI_FN void merge(const ActionVariance& other) { squares = squares + other.squares; }
};

// One action in units of the row's largest: e^u, e^x' and u - x'. Both weights are -1 for an illegal action.
template <class F>
struct ActionWeights {
  F target;
  F policy;
  F difference;
};

template <class F>
QPI_FN ActionWeights<F> weigh_action(F e, F x, F highest_value, F highest_logit, F sharpness) {
  const Mask<F> here = is_legal(x);
  const F u = (e - highest_value) * sharpness;
  const F v = x - highest_logit;
  const F target = exp_nonpositive(u);
  return {here ? target : splat<F>(-1.0f), here ? exp_nonpositive(v) : splat<F>(-1.0f),
          target > 0.0f ? u - v : splat<F>(0.0f)};
}

template <class F>
struct ActionSums {
  F target_mass{};
  F policy_mass{};
  F cross{};

  QPI_FN void add(const ActionWeights<F>& w) {
    const Mask<F> here = w.policy >= 0.0f;
    const F target = here ? w.target : splat<F>(0.0f);
    target_mass = target_mass + target;
    policy_mass = policy_mass + (here ? w.policy : splat<F>(0.0f));
    cross = lane_fma(target, here ? w.difference : splat<F>(0.0f), cross);
  }
  QPI_FN void merge(const ActionSums& other) {
    target_mass = target_mass + other.target_mass;
    policy_mass = policy_mass + other.policy_mass;
    cross = cross + other.cross;
  }
};

// KL(target || policy) of the row, given 1 / target_mass; never negative, infinite where the policy's logits are
// further apart than float32 reaches.
template <class F>
QPI_FN F kl_divergence(const ActionSums<F>& sums, F inverse_target_mass) {
  const F kl = lane_fma(sums.cross, inverse_target_mass,
                        log_at_least_one(sums.policy_mass) - log_at_least_one(sums.target_mass));
  return kl < 0.0f ? splat<F>(0.0f) : kl;
}

// The standard deviation that a row's values are divided by. `std` is 1 without scaling, the running one with it, and
// the floor of the row's own before the first observation.
template <class F>
QPI_FN F value_std(F variance, float std, bool own_std) {
  return own_std ? lane_max(splat<F>(std), lane_sqrt(variance)) : splat<F>(std);
}

// What E - max E is multiplied by. A temperature of +inf gives 0 and with it the uniform target.
template <class F>
QPI_FN F inverse_temperature(float tau, F std) {
  return splat<F>(1.0f) / lane_max(splat<F>(0x1p-126f), std * tau);
}

// One element of the gradient: what is added to the loss's derivative with respect to x[a].
template <class F>
QPI_FN F policy_minus_target(F policy, F policy_scale, F target, F target_scale) {
  return policy * policy_scale - target * target_scale;
}

}  // namespace QPI_ISA
}  // namespace qpi
