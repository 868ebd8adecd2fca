// Micro-batches that count as one observation: their gradients are written one by one, the moving average and the
// control law run once, at the commit.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "qpi_distill.h"

namespace {

void check(qpi_status status) {
  if (status != QPI_SUCCESS)
    throw std::runtime_error(std::string(qpi_status_name(status)) + ": " + qpi_last_error_message());
}

struct PlanDeleter {
  void operator()(qpi_plan* plan) const { qpi_plan_destroy(plan); }
};
using Plan = std::unique_ptr<qpi_plan, PlanDeleter>;

Plan make_plan(const qpi_problem& problem) {
  qpi_plan* plan = nullptr;
  check(qpi_plan_create(&problem, &plan));
  return Plan(plan);
}

// A state vector in host memory, with the defaults of every slot.
class HostIsv {
 public:
  HostIsv() {
    qpi_isv_init(&isv_);
    slots_.resize(static_cast<std::size_t>(qpi_layout_words(&isv_.layout)));
    blocks_.resize((qpi_workspace_size() + sizeof(Block) - 1) / sizeof(Block));
    isv_.words = static_cast<std::int64_t>(slots_.size());
    isv_.slots = slots_.data();
    isv_.workspace = blocks_.data();
    check(qpi_workspace_init(&isv_, nullptr));
    check(qpi_isv_reset(&isv_, nullptr));
  }
  HostIsv(const HostIsv&) = delete;
  HostIsv& operator=(const HostIsv&) = delete;

  const qpi_isv* get() const { return &isv_; }

  template <class T = float>
  T& slot(qpi_slot which) {
    void* address = nullptr;
    check(qpi_isv_slot_address(&isv_, which, &address));
    return *static_cast<T*>(address);
  }

 private:
  struct alignas(QPI_WORKSPACE_ALIGNMENT) Block {
    unsigned char bytes[QPI_WORKSPACE_ALIGNMENT];
  };
  std::vector<std::uint32_t> slots_;
  std::vector<Block> blocks_;
  qpi_isv isv_;
};

}  // namespace

int main() try {
  constexpr int rows = 64, micro_batch = 16, actions = 4, atoms = 11;
  std::vector<float> support(atoms), q(rows * actions * atoms), pi(rows * actions), grad(rows * actions);
  for (int z = 0; z < atoms; ++z) support[z] = -1.0f + 0.2f * z;
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 7919 % 101) / 50.0f;

  qpi_problem problem;
  qpi_problem_init(&problem);
  problem.actions = actions;
  problem.atoms = atoms;
  problem.reduction = QPI_REDUCTION_MEAN;
  problem.mode = QPI_MODE_WRITE;
  problem.value_scale = QPI_VALUE_SCALE_RUNNING_STD;
  const Plan plan = make_plan(problem);

  HostIsv isv;
  isv.slot(QPI_SLOT_tau) = 0.5f;

  float first = 0;
  for (int step = 0; step < 100; ++step) {
    for (int begin = 0; begin < rows; begin += micro_batch) {
      qpi_batch batch;
      qpi_batch_init(&batch);
      batch.rows = micro_batch;
      batch.q_logits = &q[begin * actions * atoms];
      batch.pi_logits = &pi[begin * actions];
      batch.support = support.data();
      batch.pi_grad = &grad[begin * actions];
      check(qpi_accumulate(plan.get(), isv.get(), &batch, nullptr));
    }
    check(qpi_commit(isv.get(), nullptr));
    for (std::size_t i = 0; i < pi.size(); ++i) pi[i] -= 20.0f * grad[i];
    if (step == 0) first = isv.slot(QPI_SLOT_kl_last);
  }

  const float last = isv.slot(QPI_SLOT_kl_last);
  std::printf("kl %.4f -> %.4f after %u observations of %u rows\n", first, last,
              isv.slot<std::uint32_t>(QPI_SLOT_observations), isv.slot<std::uint32_t>(QPI_SLOT_rows_last));
  return last < first ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return EXIT_FAILURE;
}
