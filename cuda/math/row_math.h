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
// and combined pairwise, (0 + 1) + (2 + 3). That order is part of the contract: one thread with four accumulators, four
// threads with one each, and a SIMD pack of rows of any width all give the same bits. More than kShortAtoms atoms are
// shared by eight lanes, two neighbours to a lane: atom z goes to partial z / 2 mod kLongPartials.
#pragma once

#include "exp_log.h"

namespace qpi {
inline namespace QPI_ISA {

constexpr int kPartials = 4;
constexpr int kShortAtoms = 128;
constexpr int kLongPartials = 8;

// ---- atoms: q_logits of one action -> its expected value ---------------------------------------------------------

// Logits that are all near zero are weighed as they are: a softmax does not see a shift, and none of its sums can
// overflow. One pass finds out, and no subtraction or clamp is needed in the next.
constexpr float kNear = 40.0f;

template <class F>
struct AtomMagnitude {
  F largest{};  // NaN if any logit is

  QPI_FN void add(F logit) { largest = lane_max_or_nan(largest, lane_abs(logit)); }
  QPI_FN void merge(const AtomMagnitude& other) { largest = lane_max_or_nan(largest, other.largest); }
  QPI_FN Mask<F> near() const { return largest <= kNear; }
};

// The general way: relative to the largest logit, whatever that is.
template <class F>
struct AtomMaximum {
  F highest = splat<F>(-kInfinity);  // NaN if any logit is

  QPI_FN void add(F logit) { highest = lane_max_or_nan(highest, logit); }
  QPI_FN void merge(const AtomMaximum& other) { highest = lane_max_or_nan(highest, other.highest); }
  QPI_FN F weight(F logit) const { return exp_clamped(logit - highest); }
};

template <class F>
struct AtomSums {
  F mass{};
  F value{};

  // `weight` is the exponential of the atom's logit, in any unit.
  QPI_FN void add(F weight, F centred_atom) {
    mass = mass + weight;
    value = lane_fma(weight, centred_atom, value);
  }
  QPI_FN void merge(const AtomSums& other) {
    mass = mass + other.mass;
    value = value + other.value;
  }
  QPI_FN F mean() const { return value * lane_reciprocal(mass); }
};

// What the general way gives: the expected value, or a mark that later steps read: NaN = the critic's logits are bad
// (NaN, +inf or no finite atom), +inf = the support is. Near logits whose mean is finite are neither.
template <class F>
QPI_FN F marked_value(const AtomMaximum<F>& maximum, F mean) {
  const F marked = is_finite(mean) ? mean : splat<F>(kInfinity);
  return is_finite(maximum.highest) ? marked : splat<F>(__builtin_nanf(""));
}

// The mean of an action's quantiles, or the mark of a bad critic.
template <class F>
QPI_FN F quantile_value(F mean) {
  return is_finite(mean) ? mean : splat<F>(__builtin_nanf(""));
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
  F value = splat<F>(-kInfinity);  // with the marks of legal actions: NaN before +inf
  F logit = splat<F>(-kInfinity);
  F value_sum{};
  F legal{};  // count

  QPI_FN void add(F e, F x) {
    const Mask<F> here = is_legal(x);
    value = lane_max_or_nan(value, here ? e : splat<F>(-kInfinity));
    logit = lane_max_or_nan(logit, x);
    value_sum = value_sum + (here ? e : splat<F>(0.0f));
    legal = legal + (here ? splat<F>(1.0f) : splat<F>(0.0f));
  }
  QPI_FN void merge(const ActionMaximum& other) {
    value = lane_max_or_nan(value, other.value);
    logit = lane_max_or_nan(logit, other.logit);
    value_sum = value_sum + other.value_sum;
    legal = legal + other.legal;
  }
  // Could the row be used, but for its support?
  QPI_FN Mask<F> usable() const { return (value == value) & (logit < kInfinity); }
  QPI_FN Mask<F> support_usable() const { return value < kInfinity; }
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

// One action in units of the row's largest: e^u, e^x' and u - x'; 0 for an illegal action.
template <class F>
struct ActionWeights {
  F target;
  F policy;
  F difference;
};

template <class F>
QPI_FN ActionWeights<F> weigh_action(F e, F x, F highest_value, F highest_logit, F sharpness) {
  const F u = (e - highest_value) * sharpness;
  const F v = x - highest_logit;
  const F target = is_legal(x) ? exp_nonpositive(u) : splat<F>(0.0f);
  return {target, exp_nonpositive(v), target > 0.0f ? u - v : splat<F>(0.0f)};
}

template <class F>
struct ActionSums {
  F target_mass{};
  F policy_mass{};
  F cross{};

  QPI_FN void add(const ActionWeights<F>& w) {
    target_mass = target_mass + w.target;
    policy_mass = policy_mass + w.policy;
    cross = lane_fma(w.target, w.difference, cross);
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

// One element of the gradient: what is added to the loss's derivative with respect to x[a]. `strength` is
// lam * scale * w.
template <class F>
QPI_FN F gradient_step(F strength, F policy, F policy_scale, F target, F target_scale) {
  return strength * (policy * policy_scale - target * target_scale);
}

}  // namespace QPI_ISA
}  // namespace qpi
