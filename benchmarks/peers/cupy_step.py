"""The step in CuPy, without a raw kernel: an elementwise kernel over pairs of row and action, one over rows, a sum."""

from __future__ import annotations

import cupy

from . import LAW, STATE

# The number of atoms is written into the source, so that the logits of a pair stay in registers.
VALUES = """
const int ATOMS = {atoms};
float x[ATOMS];
float top = q[i * ATOMS];
#pragma unroll
for (int z = 0; z < ATOMS; ++z) {{
  x[z] = q[i * ATOMS + z];
  top = fmaxf(top, x[z]);
}}
float norm = 0, sum = 0;
#pragma unroll
for (int z = 0; z < ATOMS; ++z) {{
  const float weight = __expf(x[z] - top);
  norm += weight;
  sum += weight * support[z];
}}
values[i] = sum / norm;
"""

ROWS = """
const int ACTIONS = {actions};
const ptrdiff_t first = i * ACTIONS;
float t[ACTIONS], p[ACTIONS];
float t_top = values[first] / {tau}f, p_top = pi[first];
#pragma unroll
for (int a = 0; a < ACTIONS; ++a) {{
  t[a] = values[first + a] / {tau}f;
  p[a] = pi[first + a];
  t_top = fmaxf(t_top, t[a]);
  p_top = fmaxf(p_top, p[a]);
}}
float t_norm = 0, p_norm = 0;
#pragma unroll
for (int a = 0; a < ACTIONS; ++a) {{
  t_norm += __expf(t[a] - t_top);
  p_norm += __expf(p[a] - p_top);
}}
const float t_shift = t_top + logf(t_norm), p_shift = p_top + logf(p_norm);
const float scale = lam[0] / rows;
float sum = 0;
#pragma unroll
for (int a = 0; a < ACTIONS; ++a) {{
  const float log_target = t[a] - t_shift, log_policy = p[a] - p_shift;
  const float target = __expf(log_target);
  sum += target * (log_target - log_policy);
  grad[first + a] += scale * (__expf(log_policy) - target);
}}
kl[i] = sum;
"""

FINISH = """
const float mean = total[0] / rows;
const float average = observations[0] > 0 ? kl_ema[0] + {kl_alpha}f * (mean - kl_ema[0]) : mean;
const float clamped = fminf(fmaxf(lam[0], {lam_min}f), {lam_max}f);
if (average > {kl_target}f * {kl_tolerance}f) {{
  lam[0] = fminf(clamped * {lam_up}f, {lam_max}f);
}} else if (average < {kl_target}f / {kl_tolerance}f) {{
  lam[0] = fmaxf(clamped * {lam_down}f, {lam_min}f);
}} else {{
  lam[0] = clamped;
}}
kl_ema[0] = average;
observations[0] += 1;
"""


class Step:
    """The step for batches of `rows` rows: four kernels. Its intermediate arrays are allocated once."""

    def __init__(self, rows: int, actions: int, atoms: int):
        numbers = {name: float(value) for name, value in (STATE | LAW).items()}
        self.rows, self.pairs = rows, rows * actions
        self.values = cupy.empty(self.pairs, cupy.float32)
        self.kl = cupy.empty(rows, cupy.float32)
        self.total = cupy.empty((), cupy.float32)
        self.make_values = cupy.ElementwiseKernel(
            "raw float32 q, raw float32 support",
            "raw float32 values",
            VALUES.format(atoms=atoms),
            f"qpi_bench_values_{atoms}",
        )
        self.make_rows = cupy.ElementwiseKernel(
            "raw float32 values, raw float32 pi, raw float32 lam, float32 rows",
            "raw float32 grad, raw float32 kl",
            ROWS.format(actions=actions, **numbers),
            f"qpi_bench_rows_{actions}",
        )
        self.add = cupy.ReductionKernel("float32 kl", "float32 total", "kl", "a + b", "total = a", "0", "qpi_bench_add")
        self.finish = cupy.ElementwiseKernel(
            "raw float32 total, float32 rows",
            "raw float32 lam, raw float32 kl_ema, raw int32 observations",
            FINISH.format(**numbers),
            "qpi_bench_finish",
        )

    def __call__(self, q, pi, support, grad, lam, kl_ema, observations) -> None:
        """One step on CuPy arrays: q [B, A, Z], pi and grad [B, A], support [Z], the state in arrays of one element."""
        pi, grad = pi.reshape(-1), grad.reshape(-1)
        self.make_values(q.reshape(-1), support, self.values, size=self.pairs)
        self.make_rows(self.values, pi, lam, self.rows, grad, self.kl, size=self.rows)
        self.add(self.kl, self.total)
        self.finish(self.total.reshape(1), self.rows, lam, kl_ema, observations, size=1)
