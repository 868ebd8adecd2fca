// The drop-in: the two seed kernels under their own names and signatures. Compiled to a fatbin that ships beside the
// library and is loaded by name; never linked, because a host stub of the same name would launch nothing.
#include "seed_block.cuh"

extern "C" __global__ void rl_q_pi_distill_grad(const float* __restrict__ q_logits, const float* __restrict__ pi_logits,
                                                const float* __restrict__ atom_supports, float* __restrict__ isv,
                                                float* __restrict__ pi_grad_logits, int B) {
  qpi::seed::distill_grad_block(q_logits, pi_logits, atom_supports, isv, pi_grad_logits, B);
}

extern "C" __global__ void rl_q_distill_lambda_controller(float* __restrict__ isv) {
  if (qpi::seed::linear_block() == 0 && qpi::seed::linear_thread() == 0) qpi::seed::lambda_controller(isv);
}
