// A plan: the problem with every default resolved, and what its backend worked out in advance.
#pragma once

#include <qpi_distill.h>

#include "../cpu/cpu.h"
#include "../gpu/gpu.h"

struct qpi_plan {
  qpi_problem problem;
  qpi::cpu::Plan cpu;
  qpi::gpu::Plan gpu;
};
