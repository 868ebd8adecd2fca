#include "backends.h"

#include "../cpu/cpu.h"
#include "../gpu/gpu.h"

namespace qpi {

qpi_status backend_reset(int32_t device, const IsvWords& isv, Workspace* workspace, ResetParts parts,
                         qpi_stream_t stream) {
  if (device != QPI_DEVICE_CPU) return gpu::reset(device, isv, workspace, parts, stream);
  cpu::reset(isv, workspace, parts);
  return QPI_SUCCESS;
}

qpi_status backend_commit(int32_t device, const IsvWords& isv, qpi_record* record, qpi_stream_t stream) {
  if (device != QPI_DEVICE_CPU) return gpu::commit(device, isv, record, stream);
  cpu::commit(isv, record);
  return QPI_SUCCESS;
}

qpi_status backend_control(int32_t device, const IsvWords& isv, qpi_stream_t stream) {
  if (device != QPI_DEVICE_CPU) return gpu::control(device, isv, stream);
  cpu::control(isv);
  return QPI_SUCCESS;
}

qpi_status backend_discard(int32_t device, qpi_record* record, qpi_stream_t stream) {
  if (device != QPI_DEVICE_CPU) return gpu::discard(device, record, stream);
  *record = qpi_record{};
  return QPI_SUCCESS;
}

qpi_status backend_clear_faults(int32_t device, const IsvWords& isv, qpi_stream_t stream) {
  if (device != QPI_DEVICE_CPU) return gpu::clear_faults(device, isv, stream);
  cpu::clear_faults(isv);
  return QPI_SUCCESS;
}

qpi_status backend_seed_grad(int32_t device, const float* q_logits, const float* pi_logits, const float* atom_supports,
                             float* isv, float* pi_grad_logits, int64_t rows, qpi_stream_t stream) {
  if (device != QPI_DEVICE_CPU)
    return gpu::seed_grad(device, q_logits, pi_logits, atom_supports, isv, pi_grad_logits, rows, stream);
  cpu::seed_grad(q_logits, pi_logits, atom_supports, isv, pi_grad_logits, rows);
  return QPI_SUCCESS;
}

qpi_status backend_seed_controller(int32_t device, float* isv, qpi_stream_t stream) {
  if (device != QPI_DEVICE_CPU) return gpu::seed_controller(device, isv, stream);
  cpu::seed_controller(isv);
  return QPI_SUCCESS;
}

}  // namespace qpi
