// The two seed kernels' arithmetic, kept to the letter: floors, sentinels, NaN and all. 32-bit index products are the
// one thing that is not kept. Used by the fatbin's kernels, the library's launchers and the CPU.
#pragma once

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define QPI_SEED_FN __host__ __device__ inline
#else
#define QPI_SEED_FN inline
#endif

namespace qpi::seed {

constexpr int kActions = 11;
constexpr int kAtoms = 21;
constexpr int kLambda = 486;
constexpr int kTemperature = 487;
constexpr int kKlEma = 488;
constexpr int kKlTarget = 491;
constexpr int kKlAlpha = 493;

// E_Q of one action. A NaN logit is passed over by fmaxf and then makes the sum NaN.
QPI_SEED_FN float expected_value(const float* q_logits, const float* supports) {
  float highest = q_logits[0];
  for (int z = 1; z < kAtoms; ++z) highest = fmaxf(highest, q_logits[z]);
  float mass = 0.0f;
  float e[kAtoms];
  for (int z = 0; z < kAtoms; ++z) {
    e[z] = expf(q_logits[z] - highest);
    mass += e[z];
  }
  const float scale = mass > 1e-9f ? 1.0f / mass : 1.0f / kAtoms;
  float value = 0.0f;
  for (int z = 0; z < kAtoms; ++z) value += e[z] * scale * supports[z];
  return value;
}

// softmax(x / divisor) over the actions.
QPI_SEED_FN void action_softmax(const float* x, float divisor, float* probabilities) {
  float highest = x[0];
  for (int a = 1; a < kActions; ++a) highest = fmaxf(highest, x[a]);
  float mass = 0.0f;
  for (int a = 0; a < kActions; ++a) {
    probabilities[a] = expf((x[a] - highest) / divisor);
    mass += probabilities[a];
  }
  const float scale = mass > 1e-9f ? 1.0f / mass : 1.0f / kActions;
  for (int a = 0; a < kActions; ++a) probabilities[a] *= scale;
}

QPI_SEED_FN float safe_temperature(const float* isv) { return fmaxf(isv[kTemperature], 1e-3f); }

QPI_SEED_FN float kl_divergence(const float* target, const float* policy) {
  float kl = 0.0f;
  for (int a = 0; a < kActions; ++a) {
    if (target[a] > 1e-12f) kl += target[a] * logf(target[a] / fmaxf(policy[a], 1e-12f));
  }
  return kl;
}

QPI_SEED_FN void update_kl_ema(float* isv, float kl) {
  const float before = isv[kKlEma];
  const float alpha = isv[kKlAlpha];
  isv[kKlEma] = before == 0.0f ? kl : (1.0f - alpha) * before + alpha * kl;
}

QPI_SEED_FN void lambda_controller(float* isv) {
  const float kl = isv[kKlEma];
  const float target = isv[kKlTarget];
  const float lambda = isv[kLambda];
  if (kl <= 0.0f || target <= 0.0f || lambda <= 0.0f) return;
  if (kl > target * 3.0f) {
    isv[kLambda] = fminf(1.0f, lambda * 1.2f);
  } else if (kl < target / 3.0f) {
    isv[kLambda] = fmaxf(0.05f, lambda * 0.998f);
  }
}

}  // namespace qpi::seed
