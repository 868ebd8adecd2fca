// What qpi_distill.hpp promises, checked where it runs: ownership, errors, arrays, and every call with its numbers.
#undef NDEBUG
#include <array>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <qpi_distill.hpp>
#include <type_traits>
#include <vector>

namespace {

template <class T>
constexpr bool moves_only = std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> &&
                            !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
static_assert(moves_only<qpi::Plan> && moves_only<qpi::Bound> && moves_only<qpi::HostIsv>);
static_assert(std::is_convertible_v<std::vector<float>&, qpi::Span<const float>>);
static_assert(!std::is_convertible_v<const std::vector<float>&, qpi::Span<float>>);
static_assert(!std::is_convertible_v<std::vector<double>&, qpi::Span<const float>>);
static_assert(std::is_same_v<qpi::slot_t<QPI_SLOT_lam>, float>);
static_assert(std::is_same_v<qpi::slot_t<QPI_SLOT_observations>, std::uint64_t>);

bool near(double a, double b) { return std::fabs(a - b) < 1e-6; }

template <class Function>
void fails(qpi_status status, const char* word, Function&& function) {
  try {
    function();
  } catch (const qpi::Error& error) {
    if (error.status() != status || !std::strstr(error.what(), word) ||
        !std::strstr(error.what(), qpi_status_name(status)))
      std::printf("%s\n", error.what());
    assert(error.status() == status && std::strstr(error.what(), word));
    return;
  }
  assert(!"an exception was expected");
}

// One row whose critic prefers action 0 by 1 at tau 1: target = (e, 1) / (e + 1), policy uniform.
struct Example {
  std::vector<float> support{-1, 0, 1};
  std::vector<float> q{-100, -100, 0, -100, 0, -100}, pi{0, 0}, grad{0, 0};
  double target = std::exp(1.0) / (std::exp(1.0) + 1);
  double gradient = 0.1 * (0.5 - target);  // lam starts at 0.1
  double kl = target * std::log(2 * target) + (1 - target) * std::log(2 * (1 - target));
};

qpi::Plan example_plan() {
  qpi_problem problem = qpi::problem(2, 3, QPI_REDUCTION_SUM);
  problem.value_scale = QPI_VALUE_SCALE_NONE;
  return qpi::Plan(problem);
}

void steps() {
  Example e;
  qpi::Plan made = example_plan();
  const qpi::Plan plan = std::move(made);
  assert(!made.get() && plan.problem().actions == 2);
  qpi::HostIsv first;
  qpi::HostIsv isv = std::move(first);
  const qpi_batch batch = plan.batch(e.q, e.pi, e.support, e.grad);
  assert(batch.rows == 1);

  plan.check_batch(isv, batch);
  alignas(8) qpi_record record;
  plan.measure(isv, batch, &record);
  assert(record.rows == 1 && near(record.weighted_kl, e.kl) && e.grad[0] == 0);

  plan.step(isv, batch);
  assert(near(e.grad[0], e.gradient) && near(e.grad[1], -e.gradient));
  assert(isv.value<QPI_SLOT_observations>() == 1 && near(isv.value<QPI_SLOT_kl_ema>(), e.kl));

  isv.reset();
  plan.accumulate(isv, batch);
  isv.discard();
  isv.commit();
  assert(isv.value<QPI_SLOT_observations>() == 0 && isv.value<QPI_SLOT_reason>() == QPI_REASON_NO_ROWS);
  plan.accumulate(isv, batch);
  isv.commit();
  assert(isv.value<QPI_SLOT_observations>() == 1);

  isv.reset();
  plan.distill_grad(isv, batch);
  const float before = isv.value<QPI_SLOT_lam>();
  assert(before == 0.1f && isv.value<QPI_SLOT_observations>() == 1);
  isv.set<QPI_SLOT_kl_target>(1e-3f);
  isv.control();
  assert(isv.value<QPI_SLOT_lam>() > before);
  assert(near(e.grad[0], 4 * e.gradient));  // step, two accumulates, distill_grad; the mode is add
}

void bound() {
  Example e;
  const qpi::Plan plan = example_plan();
  qpi::HostIsv isv;
  std::vector<qpi_flight> ring(4, qpi_flight{});
  isv.record_into(ring);
  qpi::Bound made = plan.bind(isv, plan.batch(e.q, e.pi, e.support, e.grad));
  const qpi::Bound bound = std::move(made);
  assert(!made.get());
  bound.step();
  bound.accumulate();
  isv.commit();
  bound.distill_grad();
  assert(isv.value<QPI_SLOT_commits>() == 3 && ring[0].commits == 1 && ring[2].commits == 3);
  assert(near(ring[0].kl_last, e.kl));
}

void options() {
  Example e;
  e.q.insert(e.q.end(), e.q.begin(), e.q.end());
  e.pi.resize(4);
  e.grad.resize(4);
  const std::array<std::uint8_t, 4> legal{1, 0, 1, 1};
  const float weights[] = {1, 0}, scale = 2;
  const qpi::Plan plan = example_plan();
  const qpi::HostIsv isv;
  qpi::BatchOptions options;
  options.legal_actions = legal;
  options.row_weights = weights;
  options.grad_scale = &scale;
  plan.step(isv, plan.batch(e.q, e.pi, e.support, e.grad, options));
  for (float g : e.grad) assert(g == 0);  // one legal action, and a row that is not there
  isv.reset();                            // lam has moved
  options = {};
  options.grad_scale = &scale;
  plan.step(isv, plan.batch(e.q, e.pi, e.support, e.grad, options));
  assert(near(e.grad[0], 2 * e.gradient));
}

void quantiles() {
  Example e;
  qpi_problem problem = qpi::problem(2, 3, QPI_REDUCTION_SUM);
  problem.critic = QPI_CRITIC_QUANTILE;
  problem.value_scale = QPI_VALUE_SCALE_NONE;
  const qpi::Plan plan(problem);
  e.q = {0, 1, 2, -1, 0, 1};  // their means are 1 and 0
  plan.step(qpi::HostIsv(), plan.batch(e.q, e.pi, {}, e.grad));
  assert(near(e.grad[0], e.gradient));
  fails(QPI_ERROR_VALUE, "support", [&] { plan.batch(e.q, e.pi, e.support, e.grad); });
}

void errors() {
  Example e;
  const qpi::Plan plan = example_plan();
  fails(QPI_ERROR_VALUE, "reduction", [] { qpi::Plan(qpi::problem(2, 3, QPI_REDUCTION_UNSET)); });
  fails(QPI_ERROR_VALUE, "q_logits has 5", [&] { plan.batch(qpi::Span(e.q).subspan(0, 5), e.pi, e.support, e.grad); });
  fails(QPI_ERROR_VALUE, "support", [&] { plan.batch(e.q, e.pi, e.q, e.grad); });
  fails(QPI_ERROR_VALUE, "pi_grad", [&] { plan.batch(e.q, e.pi, e.support, e.q); });
  fails(QPI_ERROR_VALUE, "pi_logits has 3", [&] { plan.batch(e.q, e.support, e.support, e.grad); });
  const std::uint8_t legal[3] = {};
  qpi::BatchOptions options;
  options.legal_actions = legal;
  fails(QPI_ERROR_VALUE, "legal_actions", [&] { plan.batch(e.q, e.pi, e.support, e.grad, options); });
  std::vector<std::uint16_t> half(6);
  fails(QPI_ERROR_TYPE, "q_logits", [&] { plan.batch(half, e.pi, e.support, e.grad); });
  fails(QPI_ERROR_POINTER, "", [&] { plan.step(qpi::Isv(QPI_DEVICE_CPU, nullptr, 100, nullptr), qpi_batch{}); });
  qpi_problem problem = plan.problem();
  problem.pi_stride[0] = 2;
  problem.pi_stride[1] = 1;
  const qpi::Plan strided(problem);
  fails(QPI_ERROR_UNSUPPORTED, "strides", [&] { strided.batch(e.q, e.pi, e.support, e.grad); });
  qpi::HostIsv isv;
  fails(QPI_ERROR_VALUE, "kl_alpha", [&] { isv.set<QPI_SLOT_kl_alpha>(2.0f); });
  fails(QPI_ERROR_VALUE, "tau", [&] { isv.set<QPI_SLOT_tau>(NAN); });
  fails(QPI_ERROR_POINTER, "thing", [] { qpi::check_memory(QPI_DEVICE_CPU, "thing", nullptr); });
  qpi_layout layout = qpi::native_layout();
  layout.index[QPI_SLOT_tau] = layout.index[QPI_SLOT_lam];
  fails(QPI_ERROR_VALUE, "layout", [&] { qpi::HostIsv overlapping(layout); });
}

void faults() {
  Example e;
  const qpi::Plan plan = example_plan();
  qpi::HostIsv isv;
  *static_cast<float*>(isv.address(QPI_SLOT_tau)) = -1;
  plan.step(isv, plan.batch(e.q, e.pi, e.support, e.grad));
  assert(isv.value<QPI_SLOT_faults>() == QPI_FAULT_TAU && e.grad[0] == 0);
  isv.clear_faults();
  assert(isv.value<QPI_SLOT_faults>() == 0);
}

void tables() {
  assert(qpi::version() == QPI_VERSION_CODE && qpi::build_info().front() == '{' && qpi::build_info().back() == '}');
  assert(example_plan().describe(64).find("CPU") != std::string::npos);
  assert(std::string(qpi::slot_info(QPI_SLOT_tau).name) == "tau");
  assert(std::string(qpi::lam_law_info(QPI_LAM_LAW_log_pi).name) == "log_pi");
  assert(std::string(qpi::tau_law_info(QPI_TAU_LAW_mpo_dual).name) == "mpo_dual");
  assert(qpi::preset_count() > 0 && qpi::preset(0).count > 0);
  assert(qpi::flight_field_count() > 0 && std::string(qpi::flight_field(0).name) == "commits");
  assert(qpi::workspace_state_size() <= qpi::workspace_size());
  fails(QPI_ERROR_VALUE, "", [] { qpi::preset(qpi::preset_count()); });
}

void seed() {
  std::vector<float> q(231), pi(11), support(21), bus(494), grad(11);
  for (std::size_t z = 0; z < 21; ++z) support[z] = static_cast<float>(z) - 10;
  bus[486] = 0.1f;
  bus[487] = 1;
  bus[491] = 0.05f;
  bus[493] = 0.1f;
  q[20] = 100;  // action 0 is worth 10, the others 0
  qpi::seed_distill_grad(q, pi, support, bus, grad);
  assert(std::fabs(grad[0] - 0.1 * (1.0 / 11 - 1 / (1 + 10 * std::exp(-10.0)))) < 1e-5 && bus[488] > 1);
  qpi::seed_lambda_controller(bus);
  assert(near(bus[486], 0.12f));
  fails(QPI_ERROR_VALUE, "rows", [&] { qpi::seed_distill_grad(q, pi, support, grad, grad); });
  fails(QPI_ERROR_VALUE, "isv", [&] { qpi::seed_lambda_controller(grad); });
  assert(qpi::words(qpi::bus_layout()) == QPI_SEED_BUS_WORDS);
}

}  // namespace

int main() {
  steps();
  bound();
  options();
  quantiles();
  errors();
  faults();
  tables();
  seed();
  std::puts("the wrapper keeps its word");
}
