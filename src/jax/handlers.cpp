// What XLA calls: one batch, and one commit, each for the CPU and for CUDA.
//
// Operands have fixed positions; one without elements stands for an argument that was not given. Shapes and dtypes have
// been checked when the call was traced, under the names that the user knows; what is checked here keeps memory safe if
// a program comes from elsewhere.
#include <cinttypes>
#include <initializer_list>

#include "call.h"
#include "plans.h"

#define QPI_JAX_TRY(call)                         \
  do {                                            \
    if (xla::Error* error = (call)) return error; \
  } while (false)

namespace qpi {
namespace jax {

namespace {

// What lies behind the pointers of a call.
struct Shape {
  int64_t rows, actions, atoms;
};

xla::Error* need_elements(const xla::CallFrame& frame, const char* name, const xla::Buffer& buffer, int64_t expected) {
  const int64_t found = elements(buffer);
  if (found == expected) return nullptr;
  return fail(frame, xla::Code::kInvalidArgument, "qpi_distill: %s has %" PRId64 " elements; expected %" PRId64, name,
              found, expected);
}

// That a buffer holds so many elements of a dtype, or none at all.
xla::Error* need_optional(const xla::CallFrame& frame, const char* name, const xla::Buffer& buffer, xla::DataType dtype,
                          int64_t expected) {
  if (elements(buffer) == 0) return nullptr;
  if (buffer.dtype != dtype) {
    return fail(frame, xla::Code::kInvalidArgument, "qpi_distill: %s is of XLA's type %d; expected %d", name,
                static_cast<int>(buffer.dtype), static_cast<int>(dtype));
  }
  return need_elements(frame, name, buffer, expected);
}

// That a result is the operand which it was promised to replace.
xla::Error* need_in_place(const xla::CallFrame& frame, const char* name, int operand_at, int result_at) {
  const xla::Buffer& given = operand(frame, operand_at);
  if (elements(given) == 0 || given.data == result(frame, result_at).data) return nullptr;
  return fail(frame, xla::Code::kInternal, "qpi_distill: XLA did not hand over %s in place", name);
}

template <class T>
const T* data_or_null(const xla::Buffer& buffer) {
  return elements(buffer) == 0 ? nullptr : static_cast<const T*>(buffer.data);
}

xla::Error* describe_state(const xla::CallFrame& frame, const xla::Buffer& slots, const xla::Buffer& workspace,
                           int32_t device, qpi_isv* isv) {
  qpi_isv_init(isv);
  for (const xla::Buffer* buffer : {&slots, &workspace}) {
    if (buffer->dtype != xla::DataType::kU32)
      return fail(frame, xla::Code::kInvalidArgument, "qpi_distill: the state is of XLA's type %d; expected uint32",
                  static_cast<int>(buffer->dtype));
  }
  QPI_JAX_TRY(need_elements(frame, "slots", slots, qpi_layout_words(&isv->layout)));
  QPI_JAX_TRY(need_elements(frame, "workspace", workspace, static_cast<int64_t>(qpi_workspace_size() / 4)));
  isv->device = device;
  isv->slots = slots.data;
  isv->words = elements(slots);
  isv->workspace = workspace.data;
  return nullptr;
}

xla::Error* read_options(const xla::CallFrame& frame, ProblemKey* key) {
  struct Choice {
    const char* name;
    int32_t ProblemKey::* member;
  };
  struct Number {
    const char* name;
    float ProblemKey::* member;
  };
  constexpr Choice kChoices[] = {{"reduction", &ProblemKey::reduction},
                                 {"mode", &ProblemKey::mode},
                                 {"value_scale", &ProblemKey::value_scale},
                                 {"critic", &ProblemKey::critic},
                                 {"target", &ProblemKey::target},
                                 {"divergence", &ProblemKey::divergence},
                                 {"control_stat", &ProblemKey::control_stat},
                                 {"summary", &ProblemKey::summary}};
  constexpr Number kNumbers[] = {{"illegal_below", &ProblemKey::illegal_below},
                                 {"epsilon", &ProblemKey::target_epsilon},
                                 {"beta", &ProblemKey::divergence_beta},
                                 {"policy_temperature", &ProblemKey::policy_temperature}};
  for (const Choice& choice : kChoices) QPI_JAX_TRY(read_attribute(frame, choice.name, &(key->*choice.member)));
  for (const Number& number : kNumbers) QPI_JAX_TRY(read_attribute(frame, number.name, &(key->*number.member)));
  return nullptr;
}

// The gradient and the record of one batch: what is in the workspace before does not matter, and the slots are read.
//   q_logits [B, A, Z], pi_logits [B, A], support [Z], [A, Z] or none, slots, pi_grad [B, A],
//   legal_actions [B, A] or none, row_weights [B] or none, grad_scale [1] or none -> pi_grad (aliased), workspace
xla::Error* distill(const xla::CallFrame& frame, const Place& place) {
  const xla::Buffer& q = operand(frame, 0);
  const xla::Buffer& pi = operand(frame, 1);
  const xla::Buffer& support = operand(frame, 2);
  const xla::Buffer& legal = operand(frame, 5);
  const xla::Buffer& weights = operand(frame, 6);
  const xla::Buffer& scale = operand(frame, 7);
  const xla::Buffer& grad = result(frame, 0);
  if (q.rank != 3)
    return fail(frame, xla::Code::kInvalidArgument, "qpi_distill: q_logits has rank %" PRId64 "; expected 3", q.rank);
  const Shape shape{q.dims[0], q.dims[1], q.dims[2]};
  QPI_JAX_TRY(need_elements(frame, "pi_logits", pi, shape.rows * shape.actions));
  QPI_JAX_TRY(need_elements(frame, "pi_grad", grad, shape.rows * shape.actions));
  QPI_JAX_TRY(need_in_place(frame, "pi_grad", 4, 0));
  const int64_t per_action = elements(support) == shape.atoms ? 0 : 1;
  QPI_JAX_TRY(need_optional(frame, "support", support, xla::DataType::kF32,
                            per_action != 0 ? shape.actions * shape.atoms : shape.atoms));
  // The mask is read as bytes, whatever it calls them.
  QPI_JAX_TRY(need_optional(frame, "legal_actions", legal, legal.dtype, shape.rows * shape.actions));
  QPI_JAX_TRY(need_optional(frame, "row_weights", weights, xla::DataType::kF32, shape.rows));
  QPI_JAX_TRY(need_optional(frame, "grad_scale", scale, xla::DataType::kF32, 1));
  if (legal.dtype != xla::DataType::kPred && legal.dtype != xla::DataType::kS8 && legal.dtype != xla::DataType::kU8) {
    return fail(frame, xla::Code::kInvalidArgument,
                "qpi_distill: legal_actions is of XLA's type %d; expected bool, int8 or uint8",
                static_cast<int>(legal.dtype));
  }

  ProblemKey key{};
  key.device = place.device;
  key.actions = shape.actions;
  key.atoms = shape.atoms;
  key.support_per_action = elements(support) == 0 ? 0 : static_cast<int32_t>(per_action);
  QPI_JAX_TRY(read_dtype(frame, "q_logits", q, &key.q_dtype));
  QPI_JAX_TRY(read_dtype(frame, "pi_logits", pi, &key.pi_dtype));
  QPI_JAX_TRY(read_dtype(frame, "pi_grad", grad, &key.grad_dtype));
  QPI_JAX_TRY(read_options(frame, &key));
  qpi_isv isv;
  QPI_JAX_TRY(describe_state(frame, operand(frame, 3), result(frame, 1), place.device, &isv));
  const qpi_plan* plan = nullptr;
  QPI_JAX_TRY(answer(frame, find_plan(key, &plan)));

  qpi_batch batch;
  qpi_batch_init(&batch);
  batch.rows = shape.rows;
  batch.q_logits = q.data;
  batch.pi_logits = pi.data;
  batch.support = data_or_null<float>(support);
  batch.pi_grad = grad.data;
  batch.legal_actions = data_or_null<uint8_t>(legal);
  batch.row_weights = data_or_null<float>(weights);
  batch.grad_scale = data_or_null<float>(scale);
  QPI_JAX_TRY(answer(frame, qpi_workspace_init(&isv, place.stream)));
  return answer(frame, qpi_accumulate(plan, &isv, &batch, place.stream));
}

// slots, workspace (with the record at its start) -> the same, aliased.
xla::Error* commit(const xla::CallFrame& frame, const Place& place) {
  qpi_isv isv;
  QPI_JAX_TRY(describe_state(frame, result(frame, 0), result(frame, 1), place.device, &isv));
  QPI_JAX_TRY(need_in_place(frame, "slots", 0, 0));
  QPI_JAX_TRY(need_in_place(frame, "workspace", 1, 1));
  return answer(frame, qpi_commit(&isv, place.stream));
}

struct Handler {
  xla::Error* (*run)(const xla::CallFrame&, const Place&);
  int64_t operands, results;
};
constexpr Handler kDistill{distill, 8, 2};
constexpr Handler kCommit{commit, 2, 2};

xla::Error* run(const Handler& handler, const xla::CallFrame& frame, bool gpu) {
  if (answer_metadata(frame)) return nullptr;
  QPI_JAX_TRY(check_frame(frame, handler.operands, handler.results));
  Place place{QPI_DEVICE_CPU, nullptr};
  if (gpu) QPI_JAX_TRY(find_gpu(frame, &place));
  return handler.run(frame, place);
}

}  // namespace

}  // namespace jax
}  // namespace qpi

#define QPI_JAX_HANDLER(name, handler, gpu)                                    \
  extern "C" QPI_API qpi::xla::Error* name(const qpi::xla::CallFrame* frame) { \
    return qpi::jax::run(handler, *frame, gpu);                                \
  }

QPI_JAX_HANDLER(qpi_jax_distill_cpu, qpi::jax::kDistill, false)
QPI_JAX_HANDLER(qpi_jax_distill_cuda, qpi::jax::kDistill, true)
QPI_JAX_HANDLER(qpi_jax_commit_cpu, qpi::jax::kCommit, false)
QPI_JAX_HANDLER(qpi_jax_commit_cuda, qpi::jax::kCommit, true)
