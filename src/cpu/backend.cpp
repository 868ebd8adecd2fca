// The CPU backend: instruction set, threads, and the end of a step.
#if QPI_WITH_X86_SIMD
#include <cpuid.h>
#endif
#include <sched.h>

#include <functional>
#include <thread>

#include "../../cuda/math/control_laws.h"
#include "../../cuda/seed/seed_row.h"
#include "cpu.h"

namespace qpi::cpu {

namespace {

#if QPI_WITH_X86_SIMD
// Not every compiler's __builtin_cpu_supports knows the name.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

RunSlots run_slots_of(Isa isa) {
#if QPI_WITH_X86_SIMD
  if (isa == Isa::kAvx512) return run_slots_avx512;
  if (isa == Isa::kAvx2) return run_slots_avx2;
#endif
  (void)isa;
  return run_slots_baseline;
}

// The first `threads - 1` shares go to new threads, the last to the caller, which also does whatever could not start.
constexpr int kMaxThreads = 64;

void run_shares(const Plan& plan, const RowsArgs& args, const StepNumbers& numbers, int threads) {
  const RunSlots run_slots = run_slots_of(plan.isa);
  const int slots = slots_in_use(args.rows, args.tile_rows);
  // A pack works on adjacent slots where tiles are small.
  constexpr int kPack = 16;
  const int together = args.tile_rows < kPack ? kPack / args.tile_rows : 1;
  const auto begin_of = [&](int share) {
    return static_cast<int>(int64_t{slots} * share / threads) / together * together;
  };
  const auto end_of = [&](int share) { return share + 1 == threads ? slots : begin_of(share + 1); };

  std::thread workers[kMaxThreads];
  int started = 0;
  try {
    for (; started < threads - 1; ++started)
      workers[started] =
          std::thread(run_slots, std::cref(args), std::cref(numbers), begin_of(started), end_of(started));
  } catch (...) {
    // No more threads, or no memory for one: the caller does the rest.
  }
  run_slots(args, numbers, begin_of(started), slots);
  for (int i = 0; i < started; ++i) workers[i].join();
}

// The fixed tree over slots: lanes of it, each folded in order, then pairwise.
template <class Sum, class FoldLane, class Add>
Sum fold_slots(int in_use, FoldLane fold_lane_of, Add add) {
  // The rest of the tree would add zeros.
  int width = 1;
  while (width < kFoldLanes && width < in_use) width *= 2;
  Sum lanes[kFoldLanes];
  for (int lane = 0; lane < width; ++lane) lanes[lane] = fold_lane_of(lane);
  for (int stride = 1; stride < width; stride *= 2) {
    for (int lane = 0; lane < width; lane += 2 * stride) add(lanes[lane], lanes[lane + stride]);
  }
  return lanes[0];
}

template <class Body>
void with_image(const IsvWords& isv, Body body) {
  uint32_t word[kNativeWords];
  for (int i = 0; i < kNativeWords; ++i) word[i] = *isv.at(i);
  body(IsvImage{word, isv.has(QPI_SLOT_observations), isv.flight});
  for (int i = 0; i < kNativeWords; ++i) {
    if (*isv.at(i) != word[i]) *isv.at(i) = word[i];
  }
}

}  // namespace

bool isa_supported(Isa isa) {
#if QPI_WITH_X86_SIMD
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (isa == Isa::kAvx2) return avx2;
  if (isa == Isa::kAvx512) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return isa == Isa::kBaseline;
}

Isa best_isa() {
  if (isa_supported(Isa::kAvx512)) return Isa::kAvx512;
  return isa_supported(Isa::kAvx2) ? Isa::kAvx2 : Isa::kBaseline;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kBaseline:
      return "baseline";
  }
  return "unknown";
}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    const int count = CPU_COUNT(&set);
    if (count > 0) return count;
  }
  const unsigned count = std::thread::hardware_concurrency();
  return count > 0 ? static_cast<int>(count) : 1;
}

int threads_for(const Plan& plan, int64_t rows, int64_t actions, int64_t atoms) {
  // Starting and joining a thread costs tens of microseconds; give each at least ten times as much to do.
  constexpr int64_t kElementsPerThread = 400'000;
  const int64_t elements = rows * actions * (atoms + 4);
  const int64_t pays = elements / kElementsPerThread;
  const int64_t shares = slots_in_use(rows, tile_rows_of(actions, atoms));
  const int64_t limit = plan.max_threads < kMaxThreads ? plan.max_threads : kMaxThreads;
  const int64_t most = shares < limit ? shares : limit;
  if (pays < 2) return 1;
  return static_cast<int>(pays < most ? pays : most);
}

void run(const Plan& plan, const RowsArgs& rows, const FinishArgs& finish_args) {
  const StepNumbers numbers =
      check_step_input(load_step_input(IsvMemory{rows.isv}, rows.grad_scale), rows.running_std, rows.reduction_scale);
  StatTotal total{};
  if (!numbers.halted) {
    run_shares(plan, rows, numbers, threads_for(plan, rows.rows, rows.actions, rows.atoms));
    const int in_use = slots_in_use(rows.rows, rows.tile_rows);
    total = fold_slots<StatTotal>(in_use, [&](int lane) { return fold_lane(rows.slots, in_use, lane); }, add_total);
    if (rows.summary_slots != nullptr) {
      *finish_args.summary = fold_slots<qpi_summary>(
          in_use, [&](int lane) { return fold_summary_lane(rows.summary_slots, in_use, lane); }, add_summary);
    }
  }
  with_image(rows.isv, [&](const IsvImage& isv) {
    finish(finish_args, isv, numbers, start_lam(isv), head_of(*finish_args.record), finish_args.record->summary.weight,
           total);
  });
}

void commit(const IsvWords& isv, qpi_record* record) {
  with_image(isv, [&](const IsvImage& image) { commit_record(image, record, CommitParts::kObserveAndControl); });
}
void control(const IsvWords& isv) {
  with_image(isv, [](const IsvImage& image) { control_alone(image); });
}
void clear_faults(const IsvWords& isv) { qpi::clear_faults(isv); }
void reset(const IsvWords& isv, Workspace* workspace, ResetParts parts) {
  if (workspace != nullptr) clear_state(*workspace);
  write_defaults(isv, parts);
}

void seed_grad(const float* q_logits, const float* pi_logits, const float* atom_supports, float* isv,
               float* pi_grad_logits, int64_t rows) {
  using namespace qpi::seed;
  const float lambda = isv[kLambda];
  const float temperature = safe_temperature(isv);
  for (int64_t row = 0; row < rows; ++row) {
    float values[kActions], target[kActions], policy[kActions];
    for (int a = 0; a < kActions; ++a)
      values[a] = seed::expected_value(q_logits + (row * kActions + a) * kAtoms, atom_supports);
    action_softmax(values, temperature, target);
    action_softmax(pi_logits + row * kActions, 1.0f, policy);
    if (lambda > 0.0f) {
      for (int a = 0; a < kActions; ++a) pi_grad_logits[row * kActions + a] += lambda * (policy[a] - target[a]);
    }
    if (row == 0) update_kl_ema(isv, seed::kl_divergence(target, policy));
  }
}

void seed_controller(float* isv) { seed::lambda_controller(isv); }

}  // namespace qpi::cpu
