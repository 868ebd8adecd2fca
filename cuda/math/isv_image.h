// The ISV as the formulas see it: every slot, in the native order, in fast memory. Kernels gather the words at once,
// because they are independent loads, and scatter back what changed.
#pragma once

#include "lanes.h"
#include "state.h"

namespace qpi {
inline namespace QPI_ISA {

// What each slot is, as template arguments.
template <int Slot>
struct SlotTraits;
#define QPI_TRAITS(name, type, role, def, low, high, unit, meaning)               \
  template <>                                                                     \
  struct SlotTraits<QPI_SLOT_##name> {                                            \
    static constexpr int kType = QPI_SLOT_##type;                                 \
    static constexpr float kDefault = static_cast<float>(def);                    \
    static constexpr int32_t kWord = make_native_layout().first[QPI_SLOT_##name]; \
  };
QPI_ISV_MANIFEST(QPI_TRAITS)
#undef QPI_TRAITS

struct IsvImage {
  uint32_t* word;            // [kNativeWords]
  bool counts_observations;  // the layout has a slot for them
  FlightRing flight;

  template <int Slot>
  QPI_FN float number() const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_F32, "not a float slot");
    return lane_float(word[SlotTraits<Slot>::kWord]);
  }
  template <int Slot>
  QPI_FN void set_number(float value) const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_F32, "not a float slot");
    word[SlotTraits<Slot>::kWord] = lane_bits(value);
  }

  template <int Slot>
  QPI_FN uint32_t bits() const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_U32, "not a slot of bits");
    return word[SlotTraits<Slot>::kWord];
  }
  template <int Slot>
  QPI_FN void set_bits(uint32_t value) const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_U32, "not a slot of bits");
    word[SlotTraits<Slot>::kWord] = value;
  }

  // Counters are two words because a slot is only 4-byte aligned.
  template <int Slot>
  QPI_FN uint64_t count() const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_U64, "not a counter");
    return static_cast<uint64_t>(word[SlotTraits<Slot>::kWord + 1]) << 32 | word[SlotTraits<Slot>::kWord];
  }
  template <int Slot>
  QPI_FN void set_count(uint64_t value) const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_U64, "not a counter");
    word[SlotTraits<Slot>::kWord] = static_cast<uint32_t>(value);
    word[SlotTraits<Slot>::kWord + 1] = static_cast<uint32_t>(value >> 32);
  }
};

// Slots straight from memory, for kernels that need only a few.
struct IsvMemory {
  const IsvWords& isv;

  template <int Slot>
  QPI_FN float number() const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_F32, "not a float slot");
    return lane_float(*isv.at(SlotTraits<Slot>::kWord));
  }
  template <int Slot>
  QPI_FN uint32_t bits() const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_U32, "not a slot of bits");
    return *isv.at(SlotTraits<Slot>::kWord);
  }
  template <int Slot>
  QPI_FN uint64_t count() const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_U64, "not a counter");
    return static_cast<uint64_t>(*isv.at(SlotTraits<Slot>::kWord + 1)) << 32 | *isv.at(SlotTraits<Slot>::kWord);
  }
};

// Defaults, into the slots of the layout or into those it lacks.
QPI_FN void write_defaults(const IsvWords& isv, ResetParts parts) {
#define QPI_DEFAULT(name, type, role, def, low, high, unit, meaning)                                           \
  if (isv.has(QPI_SLOT_##name) == (parts == ResetParts::kPresent)) {                                           \
    using Traits = SlotTraits<QPI_SLOT_##name>;                                                                \
    *isv.at(Traits::kWord) =                                                                                   \
        Traits::kType == QPI_SLOT_F32 ? lane_bits(Traits::kDefault) : static_cast<uint32_t>(Traits::kDefault); \
    if (Traits::kType == QPI_SLOT_U64) *isv.at(Traits::kWord + 1) = 0;                                         \
  }
  QPI_ISV_MANIFEST(QPI_DEFAULT)
#undef QPI_DEFAULT
}

// Every byte of the state, the unused ones too: it is copied and compared whole.
QPI_FN void clear_state(Workspace& workspace) {
  workspace.record = qpi_record{};
  workspace.pad = 0;
  for (uint32_t& word : workspace.absent) word = 0;
}

QPI_FN void clear_faults(const IsvWords& isv) { *isv.at(SlotTraits<QPI_SLOT_faults>::kWord) = 0; }

}  // namespace QPI_ISA
}  // namespace qpi
