// Reading and writing the ISV through a layout, on either side.
#pragma once

#include "lanes.h"
#include "state.h"

namespace qpi {
inline namespace QPI_ISA {

// What each slot is, as template arguments: a slot's default and place are constants where it is used.
template <int Slot>
struct SlotTraits;
#define QPI_TRAITS(name, type, role, def, low, high, unit, meaning) \
  template <>                                                       \
  struct SlotTraits<QPI_SLOT_##name> {                              \
    static constexpr int kType = QPI_SLOT_##type;                   \
    static constexpr bool kMirrored = QPI_SLOT_##role != QPI_SLOT_PARAM; \
    static constexpr float kDefault = static_cast<float>(def);      \
    static constexpr int32_t kNative = make_native_layout().first[QPI_SLOT_##name]; \
  };
QPI_ISV_MANIFEST(QPI_TRAITS)
#undef QPI_TRAITS

struct IsvView : IsvSpan {
  QPI_FN explicit IsvView(const IsvSpan& span) : IsvSpan(span) {}

  template <int Slot>
  QPI_FN bool has() const {
    return index[Slot] >= 0;
  }

  template <int Slot>
  QPI_FN uint32_t* at() const {
    return index[Slot] >= 0 ? slots + index[Slot] : mirror + SlotTraits<Slot>::kNative;
  }

  template <int Slot>
  QPI_FN float number() const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_F32, "not a float slot");
    if (!SlotTraits<Slot>::kMirrored && index[Slot] < 0) return SlotTraits<Slot>::kDefault;
    return lane_float(*at<Slot>());
  }
  template <int Slot>
  QPI_FN void set_number(float value) const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_F32, "not a float slot");
    *at<Slot>() = lane_bits(value);
  }

  template <int Slot>
  QPI_FN uint32_t bits() const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_U32, "not a slot of bits");
    return *at<Slot>();
  }
  template <int Slot>
  QPI_FN void set_bits(uint32_t value) const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_U32, "not a slot of bits");
    *at<Slot>() = value;
  }

  // Counters are two words because a slot is only 4-byte aligned.
  template <int Slot>
  QPI_FN uint64_t count() const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_U64, "not a counter");
    const uint32_t* word = at<Slot>();
    return static_cast<uint64_t>(word[1]) << 32 | word[0];
  }
  template <int Slot>
  QPI_FN void set_count(uint64_t value) const {
    static_assert(SlotTraits<Slot>::kType == QPI_SLOT_U64, "not a counter");
    uint32_t* word = at<Slot>();
    word[0] = static_cast<uint32_t>(value);
    word[1] = static_cast<uint32_t>(value >> 32);
  }
};

}  // namespace QPI_ISA
}  // namespace qpi
