// Bound calls: everything about a batch that does not change from call to call, worked out once.
#include <cstring>
#include <initializer_list>
#include <new>

#include "backends.h"
#include "batch.h"
#include "status.h"
#include "work.h"

using namespace qpi;

// Written once, by qpi_bind: threads may share it.
struct qpi_bound {
  const qpi_plan* plan;
  // For QPI_CHECK_POINTERS alone.
  qpi_isv isv;
  qpi_batch batch;
  gpu::Choice choice;
  RowsArgs rows;
  FinishArgs finish[3];  // by CommitParts
};

namespace {

// What is left of a call: the guard of the context and the launches.
qpi_status run_bound(const qpi_bound* bound, CommitParts parts, qpi_stream_t stream) {
  if (bound == nullptr) return fail(QPI_ERROR_POINTER, "bound is NULL");
  const qpi_plan& plan = *bound->plan;
  QPI_TRY(check_stream(plan.problem.device, stream));
  if (parts == CommitParts::kNone) QPI_TRY(check_accumulate(plan));
  if (asks_each_time(plan)) QPI_TRY(check_memory(plan, bound->isv, bound->batch, nullptr));
  if (bound->rows.rows == 0) return QPI_SUCCESS;
  const FinishArgs& finish = bound->finish[static_cast<uint32_t>(parts)];
  if (plan.problem.device != QPI_DEVICE_CPU)
    return gpu::run(plan.gpu, plan.problem.device, bound->choice, bound->rows, finish, stream);
  cpu::run(plan.cpu, bound->rows, finish);
  return QPI_SUCCESS;
}

}  // namespace

extern "C" {

qpi_status qpi_bind(const qpi_plan* plan, const qpi_isv* isv, const qpi_batch* batch, qpi_bound** bound) {
  if (bound == nullptr) return fail(QPI_ERROR_POINTER, "bound is NULL");
  *bound = nullptr;
  QPI_TRY(qpi_batch_check(plan, isv, batch));
  auto* made = new (std::nothrow) qpi_bound{};
  if (made == nullptr) return fail(QPI_ERROR_MEMORY, "no memory for a bound call (%zu bytes)", sizeof(qpi_bound));
  made->plan = plan;
  std::memcpy(&made->isv, isv, isv->size);  // perhaps an earlier, shorter struct
  made->batch = *batch;
  if (batch->rows > 0) {
    for (const CommitParts parts : {CommitParts::kNone, CommitParts::kObserve, CommitParts::kObserveAndControl})
      describe_work(*plan, *isv, *batch, parts, &made->rows, &made->finish[static_cast<uint32_t>(parts)]);
    if (plan->problem.device != QPI_DEVICE_CPU) made->choice = gpu::choose(plan->gpu, plan->problem, batch->rows);
  }
  *bound = made;
  return QPI_SUCCESS;
}

void qpi_bound_destroy(qpi_bound* bound) { delete bound; }

qpi_status qpi_bound_step(const qpi_bound* bound, qpi_stream_t stream) {
  return run_bound(bound, CommitParts::kObserveAndControl, stream);
}

qpi_status qpi_bound_accumulate(const qpi_bound* bound, qpi_stream_t stream) {
  return run_bound(bound, CommitParts::kNone, stream);
}

qpi_status qpi_bound_distill_grad(const qpi_bound* bound, qpi_stream_t stream) {
  return run_bound(bound, CommitParts::kObserve, stream);
}

}  // extern "C"
