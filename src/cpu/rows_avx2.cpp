// AVX2 and FMA: eight rows at a time.
#define QPI_ISA avx2
#include "pack_avx2.h"
#include "rows.h"

namespace qpi::cpu {

void run_slots_avx2(const RowsArgs& args, const StepNumbers& numbers, int first_slot, int end_slot) {
  run_slots<Float8>(args, numbers, first_slot, end_slot);
}

}  // namespace qpi::cpu
