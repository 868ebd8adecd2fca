// AVX-512: sixteen rows at a time.
#define QPI_ISA avx512
#include "pack_avx512.h"
#include "rows.h"

namespace qpi::cpu {

void run_slots_avx512(const RowsArgs& args, const StepNumbers& numbers, int first_slot, int end_slot) {
  run_slots<Float16>(args, numbers, first_slot, end_slot);
}

}  // namespace qpi::cpu
