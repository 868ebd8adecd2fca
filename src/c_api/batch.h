// Checks on a batch, shared by the calls that take one.
#pragma once

#include <qpi_distill.h>

#include "plan.h"

namespace qpi {

enum class Gradient { kNeeded, kNone };

// Does this batch fit the plan and the ISV? `record` is where a measurement goes, NULL where the call is none.
qpi_status check_batch(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, Gradient gradient,
                       const qpi_record* record, qpi_stream_t stream);

// Asks the driver where each pointer lives; `record` instead of pi_grad for a measurement. With no rows the batch's
// pointers are nothing.
qpi_status check_memory(const qpi_plan& plan, const qpi_isv& isv, const qpi_batch& batch, const qpi_record* record);

// Is the plan's statistic one that several calls can share?
qpi_status check_accumulate(const qpi_plan& plan);

inline bool asks_each_time(const qpi_plan& plan) { return (plan.problem.flags & QPI_CHECK_POINTERS) != 0; }

}  // namespace qpi
