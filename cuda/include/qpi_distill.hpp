// qpi-distill for C++17: the C interface (qpi_distill.h, which explains what the calls do) with ownership by types,
// errors as exceptions and arrays that know their length.
//
//     qpi::HostIsv isv;                                          // or qpi::Isv, which describes buffers of yours
//     qpi::Plan plan(qpi::problem(actions, atoms, QPI_REDUCTION_MEAN));
//     plan.step(isv, plan.batch(q_logits, pi_logits, support, pi_grad));
//
// Header-only. Every C struct is used as it is, so whatever this header does not wrap is a member away. Functions that
// fail throw qpi::Error and have changed nothing; destructors never throw. Plans and bound calls move and do not copy.
#ifndef QPI_DISTILL_HPP
#define QPI_DISTILL_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "qpi_distill.h"

namespace qpi {

// ---- errors and versions --------------------------------------------------------------------------------------------

// A call that failed: the status, and in what() its name and the library's message.
class Error : public std::runtime_error {
 public:
  Error(qpi_status status, const std::string& message)
      : std::runtime_error(std::string(qpi_status_name(status)) + ": " + message), status_(status) {}

  qpi_status status() const noexcept { return status_; }

 private:
  qpi_status status_;
};

// Throws where a call of the C interface failed.
inline void check(qpi_status status) {
  if (status != QPI_SUCCESS) throw Error(status, qpi_last_error_message());
}

inline std::int32_t version() noexcept { return qpi_version(); }

// Throws where the library in use is not the one that this header describes. Plans check it themselves.
inline void check_abi() {
  if (qpi_abi() != QPI_ABI)
    throw Error(QPI_ERROR_UNSUPPORTED, "the library has ABI " + std::to_string(qpi_abi()) + ", expected the header's " +
                                           std::to_string(QPI_ABI));
}

namespace detail {

// The text of a function that takes (text, capacity, length) last. The first call asks for the length only.
template <class Function>
std::string text(Function&& function) {
  std::size_t length = 0;
  check(function(nullptr, std::size_t{0}, &length));
  std::string out(length + 1, '\0');
  check(function(&out[0], out.size(), &length));
  out.resize(length < out.size() ? length : out.size() - 1);
  return out;
}

template <class Info, class Function>
Info info(Function&& function, std::int32_t number) {
  Info out{};
  check(function(number, &out));
  return out;
}

}  // namespace detail

// What the library holds and what the machine has, as one JSON object.
inline std::string build_info() { return detail::text(qpi_build_info); }

// ---- arrays ---------------------------------------------------------------------------------------------------------

// A contiguous array of somebody else: an address and a number of elements, of host or device memory.
template <class T>
class Span {
 public:
  using element_type = T;

  constexpr Span() noexcept = default;
  constexpr Span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}
  // Whatever has std::data() and std::size(): std::vector, std::array, a C array, std::span.
  template <class Container,
            class = std::enable_if_t<std::is_convertible_v<
                std::remove_pointer_t<decltype(std::data(std::declval<Container&>()))> (*)[], T (*)[]>>>
  constexpr Span(Container&& container) noexcept : data_(std::data(container)), size_(std::size(container)) {}

  constexpr T* data() const noexcept { return data_; }
  constexpr std::size_t size() const noexcept { return size_; }
  constexpr bool empty() const noexcept { return size_ == 0; }
  constexpr T* begin() const noexcept { return data_; }
  constexpr T* end() const noexcept { return data_ + size_; }
  constexpr T& operator[](std::size_t index) const noexcept { return data_[index]; }
  constexpr Span subspan(std::size_t offset, std::size_t count) const noexcept { return {data_ + offset, count}; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

template <class Container>
Span(Container&&) -> Span<std::remove_pointer_t<decltype(std::data(std::declval<Container&>()))>>;

// ---- the state vector -----------------------------------------------------------------------------------------------

inline qpi_layout native_layout() noexcept {
  qpi_layout layout;
  qpi_layout_native(&layout);
  return layout;
}

inline qpi_layout bus_layout() noexcept {
  qpi_layout layout;
  qpi_layout_bus(&layout);
  return layout;
}

// 4-byte slots that a buffer of this layout needs.
inline std::int64_t words(const qpi_layout& layout) {
  const std::int64_t count = qpi_layout_words(&layout);
  if (count < 0) throw Error(QPI_ERROR_VALUE, "layout: two slots overlap or an index is out of range");
  return count;
}

inline std::size_t workspace_size() noexcept { return qpi_workspace_size(); }
inline std::size_t workspace_state_size() noexcept { return qpi_workspace_state_size(); }

// The manifest, the registry of laws and the presets, at run time.
inline qpi_slot_info slot_info(qpi_slot slot) {
  return detail::info<qpi_slot_info>(qpi_isv_slot_info, static_cast<std::int32_t>(slot));
}
inline qpi_law_info lam_law_info(qpi_lam_law law) {
  return detail::info<qpi_law_info>(qpi_lam_law_info, static_cast<std::int32_t>(law));
}
inline qpi_law_info tau_law_info(qpi_tau_law law) {
  return detail::info<qpi_law_info>(qpi_tau_law_info, static_cast<std::int32_t>(law));
}
inline std::int32_t preset_count() noexcept { return qpi_preset_count(); }
inline qpi_preset_info preset(std::int32_t number) { return detail::info<qpi_preset_info>(qpi_preset_get, number); }
inline std::int32_t flight_field_count() noexcept { return qpi_flight_field_count(); }
inline qpi_flight_field flight_field(std::int32_t number) {
  return detail::info<qpi_flight_field>(qpi_flight_field_info, number);
}

// A description of a state vector in buffers that the caller owns. It copies as a pointer does: the buffers are shared.
class Isv {
 public:
  // `slots` holds `words` 4-byte slots, `workspace` workspace_size() bytes aligned to QPI_WORKSPACE_ALIGNMENT; both are
  // memory of `device`. The buffers are as they are: initialise() makes them new.
  Isv(std::int32_t device, void* slots, std::int64_t words, void* workspace,
      const qpi_layout& layout = native_layout()) noexcept {
    qpi_isv_init(&isv_);
    isv_.device = device;
    isv_.slots = slots;
    isv_.words = words;
    isv_.workspace = workspace;
    isv_.layout = layout;
  }
  explicit Isv(const qpi_isv& isv) noexcept : isv_(isv) {}

  const qpi_isv* get() const noexcept { return &isv_; }
  std::int32_t device() const noexcept { return isv_.device; }

  // The flight recorder's ring: zeroed records on the same device, which have to outlive its use. Empty: none.
  void record_into(Span<qpi_flight> ring) noexcept {
    isv_.flight = ring.empty() ? nullptr : ring.data();
    isv_.flight_capacity = static_cast<std::int64_t>(ring.size());
  }

  // Empties the workspace and writes the default of every slot. Once, before the first use.
  void initialise(qpi_stream_t stream = nullptr) const {
    initialise_workspace(stream);
    reset(stream);
  }
  void initialise_workspace(qpi_stream_t stream = nullptr) const { check(qpi_workspace_init(&isv_, stream)); }
  void reset(qpi_stream_t stream = nullptr) const { check(qpi_isv_reset(&isv_, stream)); }

  // Where a slot is: in `slots`, or in the workspace where the layout lacks it. A device or host address.
  void* address(qpi_slot slot) const {
    void* out = nullptr;
    check(qpi_isv_slot_address(&isv_, slot, &out));
    return out;
  }

  void commit(qpi_stream_t stream = nullptr) const { check(qpi_commit(&isv_, stream)); }
  void control(qpi_stream_t stream = nullptr) const { check(qpi_control(&isv_, stream)); }
  void discard(qpi_stream_t stream = nullptr) const { check(qpi_discard(&isv_, stream)); }
  void clear_faults(qpi_stream_t stream = nullptr) const { check(qpi_clear_faults(&isv_, stream)); }

 private:
  qpi_isv isv_;
};

namespace detail {

template <qpi_slot_type>
struct SlotValue;
template <>
struct SlotValue<QPI_SLOT_F32> {
  using type = float;
};
template <>
struct SlotValue<QPI_SLOT_U32> {
  using type = std::uint32_t;
};
template <>
struct SlotValue<QPI_SLOT_U64> {
  using type = std::uint64_t;
};

// Type and role of every slot, from the manifest.
struct SlotTraits {
  qpi_slot_type type;
  qpi_slot_role role;
};
inline constexpr SlotTraits slot_traits[] = {
#define QPI_SLOT_TRAITS(name, type, role, def, low, high, unit, meaning) {QPI_SLOT_##type, QPI_SLOT_##role},
    QPI_ISV_MANIFEST(QPI_SLOT_TRAITS)
#undef QPI_SLOT_TRAITS
};

}  // namespace detail

// The C++ type of a slot: float, std::uint32_t or std::uint64_t.
template <qpi_slot slot>
using slot_t = typename detail::SlotValue<detail::slot_traits[slot].type>::type;

namespace detail {

// A base class, so that the buffers exist before the description of them.
struct HostBuffers {
  struct alignas(QPI_WORKSPACE_ALIGNMENT) Block {
    unsigned char bytes[QPI_WORKSPACE_ALIGNMENT];
  };

  explicit HostBuffers(const qpi_layout& layout)
      : slots(static_cast<std::size_t>(words(layout))),
        workspace((qpi_workspace_size() + sizeof(Block) - 1) / sizeof(Block)) {}

  std::vector<std::uint32_t> slots;
  std::vector<Block> workspace;
};

}  // namespace detail

// A state vector of the CPU that owns its buffers, with the default in every slot. It moves and does not copy.
class HostIsv : private detail::HostBuffers, public Isv {
 public:
  explicit HostIsv(const qpi_layout& layout = native_layout())
      : HostBuffers(layout),
        Isv(QPI_DEVICE_CPU, slots.data(), static_cast<std::int64_t>(slots.size()), workspace.data(), layout) {
    initialise();
  }
  HostIsv(HostIsv&&) noexcept = default;
  HostIsv& operator=(HostIsv&&) noexcept = default;

  template <qpi_slot slot>
  slot_t<slot> value() const {
    const auto* word = static_cast<const std::uint32_t*>(address(slot));
    if constexpr (std::is_same_v<slot_t<slot>, std::uint64_t>) {
      return word[0] | std::uint64_t{word[1]} << 32;  // two slots, aligned as one
    } else {
      slot_t<slot> out;
      std::memcpy(&out, word, sizeof out);
      return out;
    }
  }

  // Throws where the value is outside the range of the manifest.
  template <qpi_slot slot>
  void set(slot_t<slot> value) {
    static_assert(detail::slot_traits[slot].role != QPI_SLOT_OUTPUT, "this slot is written by the loop");
    const qpi_slot_info info = slot_info(slot);
    const double number = static_cast<double>(value);
    if (!(number >= info.low && number <= info.high))
      throw Error(QPI_ERROR_VALUE, std::string(info.name) + " is " + std::to_string(number) + "; expected " +
                                       std::to_string(info.low) + " to " + std::to_string(info.high));
    auto* word = static_cast<std::uint32_t*>(address(slot));
    if constexpr (std::is_same_v<slot_t<slot>, std::uint64_t>) {
      word[0] = static_cast<std::uint32_t>(value);
      word[1] = static_cast<std::uint32_t>(value >> 32);
    } else {
      std::memcpy(word, &value, sizeof value);
    }
  }
};

// ---- plan and step --------------------------------------------------------------------------------------------------

// A problem with the defaults of the C interface: change what you need.
inline qpi_problem problem(std::int64_t actions, std::int64_t atoms, qpi_reduction reduction,
                           std::int32_t device = QPI_DEVICE_CPU) noexcept {
  qpi_problem out;
  qpi_problem_init(&out);
  out.device = device;
  out.actions = actions;
  out.atoms = atoms;
  out.reduction = reduction;
  return out;
}

// What a batch may have besides its four arrays. Empty or null: it has none.
struct BatchOptions {
  Span<const std::uint8_t> legal_actions = {};  // [rows, actions]
  Span<const float> row_weights = {};           // [rows]
  const float* grad_scale = nullptr;            // one float of the plan's device
};

// A step whose checks are paid for. The plan and all the memory must outlive it.
class Bound {
 public:
  explicit Bound(qpi_bound* bound) noexcept : bound_(bound) {}  // takes it over

  void step(qpi_stream_t stream = nullptr) const { check(qpi_bound_step(get(), stream)); }
  void accumulate(qpi_stream_t stream = nullptr) const { check(qpi_bound_accumulate(get(), stream)); }
  void distill_grad(qpi_stream_t stream = nullptr) const { check(qpi_bound_distill_grad(get(), stream)); }

  const qpi_bound* get() const noexcept { return bound_.get(); }

 private:
  struct Deleter {
    void operator()(qpi_bound* bound) const noexcept { qpi_bound_destroy(bound); }
  };
  std::unique_ptr<qpi_bound, Deleter> bound_;
};

// What does not change from step to step. Any number of threads may share one.
class Plan {
 public:
  explicit Plan(const qpi_problem& problem) : problem_(problem) {
    check_abi();
    qpi_plan* plan = nullptr;
    check(qpi_plan_create(&problem, &plan));
    plan_.reset(plan);
  }

  // A batch of packed arrays, whose lengths and element types are checked against the problem. For arrays with strides
  // fill a qpi_batch. Logits and gradient are float, or any 2-byte type for float16 and bfloat16.
  // A quantile critic has no support: an empty span.
  template <class Q, class Pi, class Grad>
  qpi_batch batch(const Q& q_logits, const Pi& pi_logits, Span<const float> support, Grad&& pi_grad,
                  const BatchOptions& options = {}) const {
    const Span q(q_logits);
    const Span pi(pi_logits);
    const Span grad(pi_grad);
    static_assert(!std::is_const_v<typename decltype(grad)::element_type>, "pi_grad is written to");
    require_packed();
    require_dtype("q_logits", problem_.q_dtype, q);
    require_dtype("pi_logits", problem_.pi_dtype, pi);
    require_dtype("pi_grad", problem_.grad_dtype, grad);
    const auto actions = static_cast<std::size_t>(problem_.actions), atoms = static_cast<std::size_t>(problem_.atoms);
    const std::size_t rows = pi.size() / actions;
    require_size("pi_logits", pi.size(), rows * actions);
    require_size("q_logits", q.size(), rows * actions * atoms);
    require_size("support", support.size(), problem_.critic == QPI_CRITIC_QUANTILE ? 0 : atoms);
    require_size("pi_grad", grad.size(), rows * actions);
    if (!options.legal_actions.empty()) require_size("legal_actions", options.legal_actions.size(), rows * actions);
    if (!options.row_weights.empty()) require_size("row_weights", options.row_weights.size(), rows);

    qpi_batch out;
    qpi_batch_init(&out);
    out.rows = static_cast<std::int64_t>(rows);
    out.q_logits = q.data();
    out.pi_logits = pi.data();
    out.support = support.empty() ? nullptr : support.data();
    out.pi_grad = grad.data();
    out.legal_actions = options.legal_actions.empty() ? nullptr : options.legal_actions.data();
    out.row_weights = options.row_weights.empty() ? nullptr : options.row_weights.data();
    out.grad_scale = options.grad_scale;
    return out;
  }

  void step(const Isv& isv, const qpi_batch& batch, qpi_stream_t stream = nullptr) const {
    check(qpi_step(get(), isv.get(), &batch, stream));
  }
  void accumulate(const Isv& isv, const qpi_batch& batch, qpi_stream_t stream = nullptr) const {
    check(qpi_accumulate(get(), isv.get(), &batch, stream));
  }
  void distill_grad(const Isv& isv, const qpi_batch& batch, qpi_stream_t stream = nullptr) const {
    check(qpi_distill_grad(get(), isv.get(), &batch, stream));
  }
  // `record` is memory of the plan's device, 8-byte aligned.
  void measure(const Isv& isv, const qpi_batch& batch, qpi_record* record, qpi_stream_t stream = nullptr) const {
    check(qpi_measure(get(), isv.get(), &batch, record, stream));
  }
  // Every check of a step, and where each pointer lives; launches nothing.
  void check_batch(const Isv& isv, const qpi_batch& batch) const { check(qpi_batch_check(get(), isv.get(), &batch)); }

  Bound bind(const Isv& isv, const qpi_batch& batch) const {
    qpi_bound* bound = nullptr;
    check(qpi_bind(get(), isv.get(), &batch, &bound));
    return Bound(bound);
  }

  // Which kernel a call with this many rows runs, and why.
  std::string describe(std::int64_t rows) const {
    return detail::text([&](char* text, std::size_t capacity, std::size_t* length) {
      return qpi_plan_describe(get(), rows, text, capacity, length);
    });
  }

  const qpi_problem& problem() const noexcept { return problem_; }
  const qpi_plan* get() const noexcept { return plan_.get(); }

 private:
  struct Deleter {
    void operator()(qpi_plan* plan) const noexcept { qpi_plan_destroy(plan); }
  };

  void require_packed() const {
    const qpi_problem& p = problem_;
    for (const std::int64_t stride : {p.q_stride[0], p.q_stride[1], p.q_stride[2], p.pi_stride[0], p.pi_stride[1],
                                      p.grad_stride[0], p.grad_stride[1], p.legal_stride[0], p.legal_stride[1],
                                      p.support_stride[0], p.support_stride[1], p.weight_stride})
      if (stride != QPI_PACKED)
        throw Error(QPI_ERROR_UNSUPPORTED,
                    "batch: the plan has strides of its own; expected packed arrays, or a "
                    "qpi_batch that you fill");
  }

  template <class T>
  static void require_dtype(const char* name, qpi_dtype dtype, Span<T>) {
    constexpr bool is_float = std::is_same_v<std::remove_const_t<T>, float>;
    if (dtype == QPI_FLOAT32 ? !is_float : sizeof(T) != 2)
      throw Error(QPI_ERROR_TYPE, std::string(name) + " has elements of " + std::to_string(sizeof(T)) +
                                      " bytes; expected " + (dtype == QPI_FLOAT32 ? "float" : "a 2-byte type"));
  }

  static void require_size(const char* name, std::size_t size, std::size_t expected) {
    if (size != expected)
      throw Error(QPI_ERROR_VALUE, std::string(name) + " has " + std::to_string(size) + " elements; expected " +
                                       std::to_string(expected));
  }

  qpi_problem problem_;
  std::unique_ptr<qpi_plan, Deleter> plan_;
};

// Is it memory that `device` can use as its own? The error calls it `name`.
inline void check_memory(std::int32_t device, const char* name, const void* memory) {
  check(qpi_memory_check(device, name, memory));
}

// ---- the seed kernels -----------------------------------------------------------------------------------------------

// Arrays of the seed's shapes: [rows, 11, 21], [rows, 11], [21], the bus, [rows, 11].
inline void seed_distill_grad(Span<const float> q_logits, Span<const float> pi_logits, Span<const float> atom_supports,
                              Span<float> isv, Span<float> pi_grad_logits, std::int32_t device = QPI_DEVICE_CPU,
                              qpi_stream_t stream = nullptr) {
  const std::size_t rows = pi_logits.size() / QPI_SEED_ACTIONS;
  if (pi_logits.size() != rows * QPI_SEED_ACTIONS || pi_grad_logits.size() != pi_logits.size() ||
      q_logits.size() != pi_logits.size() * QPI_SEED_ATOMS || atom_supports.size() != QPI_SEED_ATOMS ||
      isv.size() < QPI_SEED_BUS_WORDS)
    throw Error(QPI_ERROR_VALUE,
                "the arrays' lengths do not fit together; expected rows * 11 * 21, rows * 11, 21, at "
                "least 494 and rows * 11 elements");
  check(qpi_seed_distill_grad(q_logits.data(), pi_logits.data(), atom_supports.data(), isv.data(),
                              pi_grad_logits.data(), static_cast<std::int64_t>(rows), device, stream));
}

inline void seed_lambda_controller(Span<float> isv, std::int32_t device = QPI_DEVICE_CPU,
                                   qpi_stream_t stream = nullptr) {
  if (isv.size() < QPI_SEED_BUS_WORDS)
    throw Error(QPI_ERROR_VALUE, "isv has " + std::to_string(isv.size()) + " words; expected at least 494");
  check(qpi_seed_lambda_controller(isv.data(), device, stream));
}

}  // namespace qpi

#endif
