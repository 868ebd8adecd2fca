// The CPU backend as the C ABI sees it.
#pragma once

#include <qpi_distill.h>

#include "../../cuda/math/state.h"

namespace qpi::cpu {

// The instruction sets that rows_*.cpp are compiled for.
enum class Isa { kBaseline, kAvx2, kAvx512 };

struct Plan {
  Isa isa;
  int max_threads;
};

bool isa_supported(Isa isa);
Isa best_isa();
const char* isa_name(Isa isa);

// Cores that this process may run on.
int usable_cores();

// Threads that a call with this many rows pays for.
int threads_for(const Plan& plan, int64_t rows, int64_t actions, int64_t atoms);

void run(const Plan& plan, const RowsArgs& rows, const FinishArgs& finish);

void commit(const IsvWords& isv, qpi_record* record);
void control(const IsvWords& isv);
void clear_faults(const IsvWords& isv);
void reset(const IsvWords& isv, Workspace* workspace, ResetParts parts);
void seed_grad(const float* q_logits, const float* pi_logits, const float* atom_supports, float* isv,
               float* pi_grad_logits, int64_t rows);
void seed_controller(float* isv);

// Rows of the slots first_slot .. end_slot - 1, by one thread; one per instruction set.
using RunSlots = void (*)(const RowsArgs& args, const StepNumbers& numbers, int first_slot, int end_slot);
void run_slots_baseline(const RowsArgs& args, const StepNumbers& numbers, int first_slot, int end_slot);
void run_slots_avx2(const RowsArgs& args, const StepNumbers& numbers, int first_slot, int end_slot);
void run_slots_avx512(const RowsArgs& args, const StepNumbers& numbers, int first_slot, int end_slot);

}  // namespace qpi::cpu
