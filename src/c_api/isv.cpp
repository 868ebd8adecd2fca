// The state vector: manifest, layouts, checks, and the calls that touch nothing but the state.
#include "isv.h"

#include <cinttypes>
#include <cstddef>
#include <cstring>

#include "backends.h"
#include "status.h"

namespace qpi {

namespace {

constexpr NativeLayout kNativeLayout = make_native_layout();

// A caller that was compiled before the flight recorder knows no more of the struct than this.
constexpr size_t kIsvSizeWithoutFlight = offsetof(qpi_isv, flight);

constexpr qpi_slot_info kSlots[] = {
#define QPI_INFO(name, type, role, def, low, high, unit, meaning) \
  {#name, QPI_SLOT_##type, QPI_SLOT_##role, slot_words(QPI_SLOT_##type), def, low, high, unit, meaning},
    QPI_ISV_MANIFEST(QPI_INFO)
#undef QPI_INFO
};

#define QPI_MEMBER(name, type) {#name, QPI_SLOT_##type, static_cast<int32_t>(offsetof(qpi_flight, name))},
constexpr qpi_flight_field kFlightFields[] = {QPI_FLIGHT_MANIFEST(QPI_MEMBER)};
#undef QPI_MEMBER
constexpr int32_t kFlightFieldCount = sizeof kFlightFields / sizeof kFlightFields[0];

constexpr size_t flight_bytes() {
  size_t bytes = 0;
  for (const qpi_flight_field& field : kFlightFields) bytes += 4 * slot_words(field.type);
  return bytes;
}
static_assert(flight_bytes() == sizeof(qpi_flight), "a record has no padding");
static_assert(sizeof(qpi_flight) % alignof(uint64_t) == 0, "records follow each other");

qpi_status check_layout(const qpi_layout& layout, int64_t* words) {
  if (layout.size != sizeof(qpi_layout)) {
    return fail(QPI_ERROR_VALUE, "layout.size is %zu; expected %zu (fill the layout with qpi_layout_native or _bus)",
                layout.size, sizeof(qpi_layout));
  }
  // The native layout is the common one, and valid.
  if (std::memcmp(layout.index, kNativeLayout.first, sizeof layout.index) == 0) {
    *words = kNativeWords;
    return QPI_SUCCESS;
  }
  int64_t needed = 0;
  for (int slot = 0; slot < QPI_SLOT_COUNT; ++slot) {
    const int32_t index = layout.index[slot];
    if (index == -1) continue;
    if (index < -1) {
      return fail(QPI_ERROR_VALUE, "layout.index[%s] is %" PRId32 "; expected an index, or -1 for absent",
                  kSlots[slot].name, index);
    }
    const int64_t end = static_cast<int64_t>(index) + kSlots[slot].words;
    if (end > needed) needed = end;
    for (int other = 0; other < slot; ++other) {
      const int64_t at = layout.index[other];
      if (at >= 0 && at < end && index < at + kSlots[other].words) {
        return fail(QPI_ERROR_VALUE, "layout.index[%s] is %" PRId32 "; slot %s is already there", kSlots[slot].name,
                    index, kSlots[other].name);
      }
    }
  }
  *words = needed;
  return QPI_SUCCESS;
}

bool overlap(const void* a, uint64_t a_bytes, const void* b, uint64_t b_bytes) {
  const auto from_a = reinterpret_cast<uintptr_t>(a), from_b = reinterpret_cast<uintptr_t>(b);
  return from_a < from_b + b_bytes && from_b < from_a + a_bytes;
}

qpi_status check_flight(const qpi_isv& isv) {
  if (isv.size == kIsvSizeWithoutFlight) return QPI_SUCCESS;
  if (isv.flight == nullptr) {
    if (isv.flight_capacity == 0) return QPI_SUCCESS;
    return fail(QPI_ERROR_POINTER, "isv.flight is NULL, but isv.flight_capacity is %" PRId64 "; expected 0 then",
                isv.flight_capacity);
  }
  if (reinterpret_cast<uintptr_t>(isv.flight) % alignof(qpi_flight) != 0) {
    return fail(QPI_ERROR_POINTER, "isv.flight is %p; expected %zu-byte alignment", static_cast<void*>(isv.flight),
                alignof(qpi_flight));
  }
  if (isv.flight_capacity < 1 || isv.flight_capacity > QPI_FLIGHT_MAX) {
    return fail(QPI_ERROR_VALUE, "isv.flight_capacity is %" PRId64 "; expected 1 to %d records", isv.flight_capacity,
                QPI_FLIGHT_MAX);
  }
  const uint64_t bytes = static_cast<uint64_t>(isv.flight_capacity) * sizeof(qpi_flight);
  if (overlap(isv.flight, bytes, isv.slots, static_cast<uint64_t>(isv.words) * 4))
    return fail(QPI_ERROR_POINTER, "isv.flight overlaps isv.slots; expected memory of its own");
  if (overlap(isv.flight, bytes, isv.workspace, sizeof(Workspace)))
    return fail(QPI_ERROR_POINTER, "isv.flight overlaps isv.workspace; expected memory of its own");
  return QPI_SUCCESS;
}

// The ISV's device, and a stream that fits it.
qpi_status check_call(const qpi_isv* isv, qpi_stream_t stream) {
  QPI_TRY(check_isv(isv));
  return check_stream(isv->device, stream);
}

}  // namespace

qpi_status check_stream(int32_t device, qpi_stream_t stream) {
  if (device == QPI_DEVICE_CPU && stream != nullptr)
    return fail(QPI_ERROR_VALUE, "stream is %p; expected NULL on the CPU", static_cast<void*>(stream));
  return QPI_SUCCESS;
}

qpi_status check_isv(const qpi_isv* isv) {
  if (isv == nullptr) return fail(QPI_ERROR_POINTER, "isv is NULL");
  if (isv->size != sizeof(qpi_isv) && isv->size != kIsvSizeWithoutFlight) {
    return fail(QPI_ERROR_VALUE, "isv.size is %zu; expected %zu (fill the struct with qpi_isv_init)", isv->size,
                sizeof(qpi_isv));
  }
  if (isv->device < QPI_DEVICE_CPU) {
    return fail(QPI_ERROR_VALUE, "isv.device is %" PRId32 "; expected QPI_DEVICE_CPU (-1) or the ordinal of a GPU",
                isv->device);
  }
  int64_t needed = 0;
  QPI_TRY(check_layout(isv->layout, &needed));
  if (isv->words < needed) {
    return fail(QPI_ERROR_VALUE, "isv.words is %" PRId64 "; this layout needs at least %" PRId64, isv->words, needed);
  }
  if (isv->slots == nullptr && needed > 0) return fail(QPI_ERROR_POINTER, "isv.slots is NULL");
  if (reinterpret_cast<uintptr_t>(isv->slots) % sizeof(uint32_t) != 0)
    return fail(QPI_ERROR_POINTER, "isv.slots is %p; expected 4-byte alignment", isv->slots);
  if (isv->workspace == nullptr) return fail(QPI_ERROR_POINTER, "isv.workspace is NULL");
  if (reinterpret_cast<uintptr_t>(isv->workspace) % QPI_WORKSPACE_ALIGNMENT != 0) {
    return fail(QPI_ERROR_POINTER, "isv.workspace is %p; expected %d-byte alignment", isv->workspace,
                QPI_WORKSPACE_ALIGNMENT);
  }
  if (overlap(isv->slots, static_cast<uint64_t>(isv->words) * 4, isv->workspace, sizeof(Workspace)))
    return fail(QPI_ERROR_POINTER, "isv.slots overlaps isv.workspace");
  return check_flight(*isv);
}

FlightRing isv_flight(const qpi_isv& isv) {
  if (isv.size == kIsvSizeWithoutFlight || isv.flight == nullptr) return {nullptr, 0};
  return {isv.flight, static_cast<uint64_t>(isv.flight_capacity)};
}

IsvWords isv_words(const qpi_isv& isv) {
  IsvWords words{};
  words.slots = static_cast<uint32_t*>(isv.slots);
  words.absent = isv_workspace(isv)->absent;
  words.flight = isv_flight(isv);
  words.native = std::memcmp(isv.layout.index, kNativeLayout.first, sizeof isv.layout.index) == 0;
  if (words.native) {
    words.present = (uint64_t{2} << (QPI_SLOT_COUNT - 1)) - 1;
    return words;
  }
  for (int slot = 0; slot < QPI_SLOT_COUNT; ++slot) {
    const int32_t first = kNativeLayout.first[slot];
    const int32_t index = isv.layout.index[slot];
    if (index >= 0) words.present |= uint64_t{1} << slot;
    for (int32_t i = 0; first + i < kNativeLayout.first[slot + 1]; ++i)
      words.index[first + i] = index < 0 ? -1 : index + i;
  }
  return words;
}

}  // namespace qpi

using namespace qpi;

extern "C" {

qpi_status qpi_isv_slot_info(int32_t slot, qpi_slot_info* info) {
  if (info == nullptr) return fail(QPI_ERROR_POINTER, "info is NULL");
  if (slot < 0 || slot >= QPI_SLOT_COUNT)
    return fail(QPI_ERROR_VALUE, "slot is %" PRId32 "; expected 0 to %d", slot, QPI_SLOT_COUNT - 1);
  *info = kSlots[slot];
  return QPI_SUCCESS;
}

void qpi_layout_native(qpi_layout* layout) {
  if (layout == nullptr) return;
  layout->size = sizeof(qpi_layout);
  for (int slot = 0; slot < QPI_SLOT_COUNT; ++slot) layout->index[slot] = kNativeLayout.first[slot];
}

void qpi_layout_bus(qpi_layout* layout) {
  if (layout == nullptr) return;
  layout->size = sizeof(qpi_layout);
  for (int32_t& index : layout->index) index = -1;
  layout->index[QPI_SLOT_lam] = 486;
  layout->index[QPI_SLOT_tau] = 487;
  layout->index[QPI_SLOT_kl_ema] = 488;
  layout->index[QPI_SLOT_kl_target] = 491;
  layout->index[QPI_SLOT_kl_alpha] = 493;
}

int64_t qpi_layout_words(const qpi_layout* layout) {
  int64_t words = 0;
  if (layout == nullptr || check_layout(*layout, &words) != QPI_SUCCESS) return -1;
  return words;
}

size_t qpi_workspace_size(void) { return sizeof(Workspace); }

size_t qpi_workspace_state_size(void) { return offsetof(Workspace, slots); }

void qpi_isv_init(qpi_isv* isv) {
  if (isv == nullptr) return;
  *isv = qpi_isv{};
  isv->size = sizeof(qpi_isv);
  isv->device = QPI_DEVICE_CPU;
  qpi_layout_native(&isv->layout);
}

qpi_status qpi_isv_slot_address(const qpi_isv* isv, qpi_slot slot, void** address) {
  if (address == nullptr) return fail(QPI_ERROR_POINTER, "address is NULL");
  QPI_TRY(check_isv(isv));
  if (slot < 0 || slot >= QPI_SLOT_COUNT)
    return fail(QPI_ERROR_VALUE, "slot is %d; expected 0 to %d", static_cast<int>(slot), QPI_SLOT_COUNT - 1);
  *address = isv_words(*isv).at(kNativeLayout.first[slot]);
  return QPI_SUCCESS;
}

qpi_status qpi_workspace_init(const qpi_isv* isv, qpi_stream_t stream) {
  QPI_TRY(check_call(isv, stream));
  return backend_reset(isv->device, isv_words(*isv), isv_workspace(*isv), ResetParts::kAbsent, stream);
}

int32_t qpi_flight_field_count(void) { return kFlightFieldCount; }

qpi_status qpi_flight_field_info(int32_t field, qpi_flight_field* info) {
  if (info == nullptr) return fail(QPI_ERROR_POINTER, "info is NULL");
  if (field < 0 || field >= kFlightFieldCount)
    return fail(QPI_ERROR_VALUE, "field is %" PRId32 "; expected 0 to %" PRId32, field, kFlightFieldCount - 1);
  *info = kFlightFields[field];
  return QPI_SUCCESS;
}

qpi_status qpi_isv_reset(const qpi_isv* isv, qpi_stream_t stream) {
  QPI_TRY(check_call(isv, stream));
  return backend_reset(isv->device, isv_words(*isv), nullptr, ResetParts::kPresent, stream);
}

qpi_status qpi_commit(const qpi_isv* isv, qpi_stream_t stream) {
  QPI_TRY(check_call(isv, stream));
  return backend_commit(isv->device, isv_words(*isv), &isv_workspace(*isv)->record, stream);
}

qpi_status qpi_control(const qpi_isv* isv, qpi_stream_t stream) {
  QPI_TRY(check_call(isv, stream));
  return backend_control(isv->device, isv_words(*isv), stream);
}

qpi_status qpi_discard(const qpi_isv* isv, qpi_stream_t stream) {
  QPI_TRY(check_call(isv, stream));
  return backend_discard(isv->device, &isv_workspace(*isv)->record, stream);
}

qpi_status qpi_clear_faults(const qpi_isv* isv, qpi_stream_t stream) {
  QPI_TRY(check_call(isv, stream));
  return backend_clear_faults(isv->device, isv_words(*isv), stream);
}

}  // extern "C"
