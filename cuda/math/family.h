// The family of one row: other targets than softmax(E / tau), other divergences than KL(target || policy), and what a
// trainer wants to see of both. The plain step has a shorter way (row_math.h); where the two meet they agree.
//
// From here on u = log target and v = log policy but for a constant, at most 0 and 0 for the likeliest action; -inf
// marks an illegal one. With it = 1 / sum e^u, ip = 1 / sum e^(v/T): t = e^u it, p = e^(v/T) ip, and with r = log p -
// log t, or log p - log m for m = beta t + (1 - beta) p:
//
//   divergence       value                                      gradient with respect to the logits x, times T
//   forward KL       sum t (log t - log p)                       p - t
//   reverse KL       sum p r                                     p (r - sum p r)
//   Jensen-Shannon   beta sum t (log t - log m) +                (1 - beta) p (r - sum p r)
//                    (1 - beta) sum p r
//   Hellinger        1 - S, S = sum sqrt(t p)                    (p S - sqrt(t p)) / 2
//   total variation  sum |p - t| / 2                             p (s - sum p s) / 2, s = sign(p - t)
//
// Sources: Lin 1991 (Jensen-Shannon); Beran 1977 (Hellinger); the gradients follow from d p / d x = p (1 - p) / T.
#pragma once

#include "statistic.h"

namespace qpi {
inline namespace QPI_ISA {

// log x for 0 < x <= 1; of smaller numbers than float32 can invert, that of the smallest.
template <class F>
QPI_FN F log_share(F x) {
  return -log_at_least_one(splat<F>(1.0f) / lane_max(splat<F>(0x1p-120f), x));
}

template <class F>
QPI_FN Mask<F> is_best(F u) {
  return u == 0.0f;
}

constexpr float kFar = 3.0e38f;  // no legal action is further from the best, so that -inf stays a mark

// ---- the target ----------------------------------------------------------------------------------------------------

template <class F>
struct BestCount {
  F best{};

  QPI_FN void merge(const BestCount& other) { best = best + other.best; }
};

// The epsilon-soft greedy target: (1 - epsilon) over the k best actions, epsilon over all. What the others have, as a
// logarithm relative to the best.
template <class F>
QPI_FN F soft_greedy_rest(F best, F legal, float epsilon) {
  const F rest = splat<F>(epsilon) / legal;
  const F top = splat<F>(1.0f - epsilon) / best + rest;
  return epsilon > 0.0f ? log_share(rest / top) : splat<F>(-kInfinity);
}

// ---- sums over the actions -----------------------------------------------------------------------------------------

template <class F>
struct FamilyMasses {
  F target{}, policy{}, student{};    // sums of e^u, e^v, e^(v/T)
  F cross{}, target_u{}, policy_v{};  // sums of e^u (u - v), e^u u, e^v v
  F best_policy{}, best_both{};       // over the target's best actions: largest e^v, how many with v = 0

  QPI_FN void add(F u, F v, float cool) {
    const F t = exp_nonpositive(u), p = exp_nonpositive(v);
    target = target + t;
    policy = policy + p;
    student = student + (cool == 1.0f ? p : exp_nonpositive(v * cool));
    cross = lane_fma(t, t > 0.0f ? u - v : F{}, cross);
    target_u = lane_fma(t, t > 0.0f ? u : F{}, target_u);
    policy_v = lane_fma(p, p > 0.0f ? v : F{}, policy_v);
    const F one = is_best(u) ? splat<F>(1.0f) : F{};
    best_policy = lane_max(best_policy, one * p);
    best_both = best_both + (is_best(v) ? one : F{});
  }
  QPI_FN void merge(const FamilyMasses& o) {
    target = target + o.target;
    policy = policy + o.policy;
    student = student + o.student;
    cross = cross + o.cross;
    target_u = target_u + o.target_u;
    policy_v = policy_v + o.policy_v;
    best_policy = lane_max(best_policy, o.best_policy);
    best_both = best_both + o.best_both;
  }
};

// What turns u and v into probabilities and their logarithms.
template <class F>
struct FamilyScales {
  F target, log_target, policy, student, log_student;  // reciprocals and logarithms of the masses
  float cool;                                          // 1 / T

  QPI_FN FamilyScales() = default;
  QPI_FN FamilyScales(const FamilyMasses<F>& masses, float cool)
      : target(lane_reciprocal(masses.target)),
        log_target(log_at_least_one(masses.target)),
        policy(lane_reciprocal(masses.policy)),
        student(lane_reciprocal(masses.student)),
        log_student(log_at_least_one(masses.student)),
        cool(cool) {}
};

// One action as the divergences see it.
template <class F>
struct FamilyAction {
  F t, p, log_t, log_p;

  QPI_FN FamilyAction(F u, F v, const FamilyScales<F>& scales)
      : t(exp_nonpositive(u) * scales.target),
        p(exp_nonpositive(v * scales.cool) * scales.student),
        log_t(u - scales.log_target),
        log_p(lane_fma(v, splat<F>(scales.cool), -scales.log_student)) {}

  QPI_FN F log_mixture(float beta) const { return log_share(lane_fma(splat<F>(beta), t, splat<F>(1.0f - beta) * p)); }
  QPI_FN F sign() const { return p > t ? splat<F>(1.0f) : p < t ? splat<F>(-1.0f) : F{}; }
};

// What a divergence sums over the actions besides the masses: its value, and what its gradient is measured from.
template <class F>
struct DivergenceSums {
  F value{};
  F centre{};
  F overlap{};  // sum min(t, p) at T = 1

  QPI_FN void add(F u, F v, const FamilyScales<F>& scales, const RowFamily& family) {
    const FamilyAction<F> a(u, v, scales);
    const F policy = scales.cool == 1.0f ? a.p : exp_nonpositive(v) * scales.policy;
    overlap = overlap + (policy < a.t ? policy : a.t);
    switch (family.divergence) {
      case QPI_DIVERGENCE_FORWARD_KL:
        value = value + (a.t > 0.0f ? a.t * (a.log_t - a.log_p) : F{});
        break;
      case QPI_DIVERGENCE_REVERSE_KL:
        centre = centre + (a.p > 0.0f ? a.p * (a.log_p - a.log_t) : F{});
        break;
      case QPI_DIVERGENCE_JENSEN_SHANNON: {
        const F log_m = a.log_mixture(family.beta);
        centre = centre + (a.p > 0.0f ? a.p * (a.log_p - log_m) : F{});
        value = value + (a.t > 0.0f ? a.t * (a.log_t - log_m) : F{});
        break;
      }
      case QPI_DIVERGENCE_HELLINGER:
        centre = centre + lane_sqrt(a.t * a.p);
        break;
      case QPI_DIVERGENCE_TOTAL_VARIATION:
        centre = lane_fma(a.p, a.sign(), centre);
        value = value + lane_abs(a.p - a.t);
        break;
    }
  }
  QPI_FN void merge(const DivergenceSums& o) {
    value = value + o.value;
    centre = centre + o.centre;
    overlap = overlap + o.overlap;
  }

  QPI_FN F divergence(const RowFamily& family) const {
    F d{};
    switch (family.divergence) {
      case QPI_DIVERGENCE_FORWARD_KL:
        d = value;
        break;
      case QPI_DIVERGENCE_REVERSE_KL:
        d = centre;
        break;
      case QPI_DIVERGENCE_JENSEN_SHANNON:
        d = lane_fma(splat<F>(family.beta), value, splat<F>(1.0f - family.beta) * centre);
        break;
      case QPI_DIVERGENCE_HELLINGER:
        d = 1.0f - centre;
        break;
      case QPI_DIVERGENCE_TOTAL_VARIATION:
        d = 0.5f * value;
        break;
    }
    return d < 0.0f ? F{} : d;
  }
};

// An element of the gradient, before its strength.
template <class F>
QPI_FN F divergence_gradient(F u, F v, const FamilyScales<F>& scales, const DivergenceSums<F>& sums,
                             const RowFamily& family) {
  const FamilyAction<F> a(u, v, scales);
  F g{};
  switch (family.divergence) {
    case QPI_DIVERGENCE_FORWARD_KL:
      g = a.p - a.t;
      break;
    case QPI_DIVERGENCE_REVERSE_KL:
      g = a.p > 0.0f ? a.p * (a.log_p - a.log_t - sums.centre) : F{};
      break;
    case QPI_DIVERGENCE_JENSEN_SHANNON:
      g = a.p > 0.0f ? (1.0f - family.beta) * (a.p * (a.log_p - a.log_mixture(family.beta) - sums.centre)) : F{};
      break;
    case QPI_DIVERGENCE_HELLINGER:
      g = 0.5f * (a.p * sums.centre - lane_sqrt(a.t * a.p));
      break;
    case QPI_DIVERGENCE_TOTAL_VARIATION:
      g = 0.5f * (a.p * (a.sign() - sums.centre));
      break;
  }
  return g * scales.cool;
}

// ---- a row ---------------------------------------------------------------------------------------------------------

// What one row says about target and policy; SummarySums adds it up.
template <class F>
struct RowSummary {
  F loss, target_entropy, policy_entropy, uniform_entropy, agreement, pi_at_qstar, overlap;
};

QPI_FN void add_row(qpi_summary& sum, float weight, const RowSummary<float>& row) {
  if (!(weight > 0.0f) || !is_finite(row.loss)) return;
  const double w = weight;
  sum.weight += w;
  sum.loss += w * static_cast<double>(row.loss);
  sum.target_entropy += w * static_cast<double>(row.target_entropy);
  sum.policy_entropy += w * static_cast<double>(row.policy_entropy);
  sum.uniform_entropy += w * static_cast<double>(row.uniform_entropy);
  sum.agreement += w * static_cast<double>(row.agreement);
  sum.pi_at_qstar += w * static_cast<double>(row.pi_at_qstar);
  sum.overlap += w * static_cast<double>(row.overlap);
}

template <class F>
struct FamilyRow {
  ActionMaximum<F> maximum;
  F variance;
  F kl;    // forward KL at T = 1, whatever the loss is
  F loss;  // the divergence
  RowSummary<F> summary;
  FamilyScales<F> scales;
  DivergenceSums<F> sums;

  // Could the row be used, but for its support? The forward KL has a gradient even where its value is infinite.
  QPI_FN Mask<F> usable(const RowFamily& family) const {
    const Mask<F> any = maximum.usable();
    return family.divergence == QPI_DIVERGENCE_FORWARD_KL ? any : any & (is_finite(loss) | !maximum.support_usable());
  }
  QPI_FN F control(const RowFamily& family) const { return family.control_stat == QPI_CONTROL_STAT_LOSS ? loss : kl; }
};

// Everything but the gradient. `values` and `logits` hold expected values and policy logits (-inf: illegal), and on
// return u and v. A Team walks the actions of a row: Team::each(actions, body(a)) and, with partial sums as in
// row_math.h, Team::reduce<Accumulator>(actions, body(accumulator, a)).
template <class F, class Team>
QPI_FN FamilyRow<F> measure_family(F* values, F* logits, int actions, const StepNumbers& numbers,
                                   const RowFamily& family) {
  FamilyRow<F> row;
  row.maximum = Team::template reduce<ActionMaximum<F>>(
      actions, [&](ActionMaximum<F>& m, int a) { m.add(values[a], logits[a]); });
  const F inverse_legal = lane_reciprocal(row.maximum.legal);
  const F mean = row.maximum.value_sum * inverse_legal;
  row.variance = Team::template reduce<ActionVariance<F>>(
                     actions, [&](ActionVariance<F>& v, int a) { v.add(values[a], logits[a], mean); })
                     .squares *
                 inverse_legal;

  const F highest = row.maximum.value;
  if (family.target == QPI_TARGET_BOLTZMANN) {
    const F sharpness = inverse_temperature(numbers.tau, value_std(row.variance, numbers.std, numbers.own_std));
    Team::each(actions, [&](int a) {
      const F u = lane_max(splat<F>(-kFar), (values[a] - highest) * sharpness);
      values[a] = is_legal(logits[a]) ? u : splat<F>(-kInfinity);
    });
  } else {
    const F best = Team::template reduce<BestCount<F>>(actions, [&](BestCount<F>& count, int a) {
                     count.best = count.best + (is_legal(logits[a]) & (values[a] == highest) ? splat<F>(1.0f) : F{});
                   }).best;
    const F rest = soft_greedy_rest(best, row.maximum.legal, family.epsilon);
    Team::each(actions, [&](int a) {
      const F u = values[a] == highest ? F{} : rest;
      values[a] = is_legal(logits[a]) ? u : splat<F>(-kInfinity);
    });
  }
  Team::each(actions, [&](int a) {
    const F v = lane_max(splat<F>(-kFar), logits[a] - row.maximum.logit);
    logits[a] = is_legal(logits[a]) ? v : splat<F>(-kInfinity);
  });

  const FamilyMasses<F> masses = Team::template reduce<FamilyMasses<F>>(
      actions, [&](FamilyMasses<F>& m, int a) { m.add(values[a], logits[a], family.cool); });
  row.scales = FamilyScales<F>(masses, family.cool);
  row.sums = Team::template reduce<DivergenceSums<F>>(
      actions, [&](DivergenceSums<F>& s, int a) { s.add(values[a], logits[a], row.scales, family); });
  row.loss = row.sums.divergence(family);

  const F log_policy = log_at_least_one(masses.policy);
  const F kl = lane_fma(masses.cross, row.scales.target, log_policy - row.scales.log_target);
  row.kl = kl < 0.0f ? F{} : kl;
  row.summary.loss = row.loss;
  row.summary.target_entropy = lane_fma(-masses.target_u, row.scales.target, row.scales.log_target);
  row.summary.policy_entropy = lane_fma(-masses.policy_v, row.scales.policy, log_policy);
  row.summary.uniform_entropy = log_at_least_one(row.maximum.legal);
  row.summary.agreement = masses.best_both > 0.0f ? splat<F>(1.0f) : F{};
  row.summary.pi_at_qstar = masses.best_policy * row.scales.policy;
  row.summary.overlap = row.sums.overlap;
  return row;
}

// The gradient's step in place of u, negative zero where nothing is to change.
template <class F, class Team>
QPI_FN void family_steps(F* values, const F* logits, int actions, const FamilyRow<F>& row, F strength,
                         const RowFamily& family) {
  const Mask<F> has_gradient = strength != 0.0f;
  Team::each(actions, [&](int a) {
    const F step = strength * divergence_gradient(values[a], logits[a], row.scales, row.sums, family);
    values[a] = has_gradient & is_legal(logits[a]) ? step : -splat<F>(0.0f);
  });
}

}  // namespace QPI_ISA
}  // namespace qpi
