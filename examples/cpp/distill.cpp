// Micro-batches that count as one observation: their gradients are written one by one, the moving average and the
// control law run once, at the commit. On a GPU `qpi::Isv` describes device buffers, and the calls take a stream.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <qpi_distill.hpp>
#include <vector>

int main() try {
  constexpr std::size_t rows = 64, micro_batch = 16, actions = 4, atoms = 11;
  std::vector<float> support(atoms), q(rows * actions * atoms), pi(rows * actions), grad(rows * actions);
  for (std::size_t z = 0; z < atoms; ++z) support[z] = -1.0f + 0.2f * static_cast<float>(z);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 7919 % 101) / 50.0f;

  qpi_problem problem = qpi::problem(actions, atoms, QPI_REDUCTION_MEAN);
  problem.mode = QPI_MODE_WRITE;
  problem.value_scale = QPI_VALUE_SCALE_RUNNING_STD;
  const qpi::Plan plan(problem);

  qpi::HostIsv isv;
  isv.set<QPI_SLOT_tau>(0.5f);

  // The arrays stay where they are, so that each micro-batch is checked and prepared once.
  std::vector<qpi::Bound> bound;
  for (std::size_t row = 0; row < rows; row += micro_batch)
    bound.push_back(
        plan.bind(isv, plan.batch(qpi::Span(q).subspan(row * actions * atoms, micro_batch * actions * atoms),
                                  qpi::Span(pi).subspan(row * actions, micro_batch * actions), support,
                                  qpi::Span(grad).subspan(row * actions, micro_batch * actions))));

  float first = 0;
  for (int step = 0; step < 100; ++step) {
    for (const qpi::Bound& part : bound) part.accumulate();
    isv.commit();
    for (std::size_t i = 0; i < pi.size(); ++i) pi[i] -= 20.0f * grad[i];
    if (step == 0) first = isv.value<QPI_SLOT_kl_last>();
  }

  const float last = isv.value<QPI_SLOT_kl_last>();
  std::printf("kl %.4f -> %.4f after %ju observations of %ju rows\n", static_cast<double>(first),
              static_cast<double>(last), std::uintmax_t{isv.value<QPI_SLOT_observations>()},
              std::uintmax_t{isv.value<QPI_SLOT_rows_last>()});
  return last < first ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const std::exception& error) {  // qpi::Error: which argument, what it was, what was expected
  std::fprintf(stderr, "%s\n", error.what());
  return EXIT_FAILURE;
}
