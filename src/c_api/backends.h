// The two places where work can run. The C ABI checks, then calls these; `device` decides which one answers.
#pragma once

#include <qpi_distill.h>

#include "../../cuda/math/state.h"

namespace qpi {

qpi_status check_stream(int32_t device, qpi_stream_t stream);

qpi_status backend_reset(int32_t device, const IsvWords& isv, Workspace* workspace, ResetParts parts,
                         qpi_stream_t stream);
qpi_status backend_commit(int32_t device, const IsvWords& isv, qpi_record* record, qpi_stream_t stream);
qpi_status backend_control(int32_t device, const IsvWords& isv, qpi_stream_t stream);
qpi_status backend_discard(int32_t device, qpi_record* record, qpi_stream_t stream);
qpi_status backend_clear_faults(int32_t device, const IsvWords& isv, qpi_stream_t stream);
qpi_status backend_seed_grad(int32_t device, const float* q_logits, const float* pi_logits, const float* atom_supports,
                             float* isv, float* pi_grad_logits, int64_t rows, qpi_stream_t stream);
qpi_status backend_seed_controller(int32_t device, float* isv, qpi_stream_t stream);

}  // namespace qpi
