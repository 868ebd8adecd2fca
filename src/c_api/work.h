// From a checked batch to what a backend runs.
#pragma once

#include <qpi_distill.h>

#include "../../cuda/math/state.h"
#include "plan.h"

namespace qpi {

void describe_work(const qpi_plan& plan, const qpi_isv& isv, const qpi_batch& batch, CommitParts parts, RowsArgs* rows,
                   FinishArgs* finish);

qpi_status run(const qpi_plan& plan, const RowsArgs& rows, const FinishArgs& finish, qpi_stream_t stream);

}  // namespace qpi
