// Any processor: one row at a time.
#define QPI_ISA baseline
#include "pack_float.h"
#include "rows.h"

namespace qpi::cpu {

void run_slots_baseline(const RowsArgs& args, const StepNumbers& numbers, int first_slot, int end_slot) {
  run_slots<float>(args, numbers, first_slot, end_slot);
}

}  // namespace qpi::cpu
