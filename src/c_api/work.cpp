// From a checked batch to what a backend runs.
#include "work.h"

#include "isv.h"

namespace qpi {

void describe_work(const qpi_plan& plan, const qpi_isv& isv, const qpi_batch& batch, CommitParts parts, RowsArgs* rows,
                   FinishArgs* finish) {
  const qpi_problem& p = plan.problem;
  Workspace* workspace = isv_workspace(isv);
  rows->isv = isv_words(isv);
  rows->q_logits = batch.q_logits;
  rows->pi_logits = batch.pi_logits;
  rows->support = batch.support;
  rows->pi_grad = batch.pi_grad;
  rows->legal_actions = batch.legal_actions;
  rows->row_weights = batch.row_weights;
  rows->grad_scale = batch.grad_scale;
  rows->slots = workspace->slots;
  rows->rows = batch.rows;
  for (int i = 0; i < 3; ++i) rows->q_stride[i] = p.q_stride[i];
  for (int i = 0; i < 2; ++i) {
    rows->pi_stride[i] = p.pi_stride[i];
    rows->grad_stride[i] = p.grad_stride[i];
    rows->legal_stride[i] = p.legal_stride[i];
    rows->support_stride[i] = p.support_stride[i];
  }
  rows->weight_stride = p.weight_stride;
  rows->actions = static_cast<int32_t>(p.actions);
  rows->atoms = static_cast<int32_t>(p.atoms);
  rows->tile_rows = tile_rows_of(p.actions, p.atoms);
  rows->q_dtype = p.q_dtype;
  rows->pi_dtype = p.pi_dtype;
  rows->grad_dtype = p.grad_dtype;
  rows->reduction_scale =
      p.reduction == QPI_REDUCTION_MEAN ? static_cast<float>(1.0 / static_cast<double>(batch.rows)) : 1.0f;
  rows->illegal_below = p.illegal_below;
  rows->write = p.mode == QPI_MODE_WRITE;
  rows->running_std = p.value_scale == QPI_VALUE_SCALE_RUNNING_STD;
  rows->row0 = p.kl_stat == QPI_KL_STAT_ROW0;
  rows->family = family_of(p);
  rows->summary_slots = (p.flags & QPI_SUMMARY) != 0 ? workspace->summary_slots : nullptr;

  finish->record = &workspace->record;
  finish->measured = nullptr;
  finish->slots = workspace->slots;
  finish->summary_slots = rows->summary_slots;
  finish->summary = &workspace->summary;
  finish->grad_scale = batch.grad_scale;
  finish->slots_in_use = slots_in_use(batch.rows, rows->tile_rows);
  finish->reduction_scale = rows->reduction_scale;
  finish->running_std = rows->running_std;
  finish->parts = parts;
}

qpi_status run(const qpi_plan& plan, const RowsArgs& rows, const FinishArgs& finish, qpi_stream_t stream) {
  const qpi_problem& problem = plan.problem;
  if (problem.device != QPI_DEVICE_CPU) {
    return gpu::run(plan.gpu, problem.device, gpu::choose(plan.gpu, problem, rows.rows), rows, finish, stream);
  }
  cpu::run(plan.cpu, rows, finish);
  return QPI_SUCCESS;
}

}  // namespace qpi
