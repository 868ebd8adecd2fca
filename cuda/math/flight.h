// The flight recorder: a commit's slots, written beside the state. Stores only: nothing waits for memory.
#pragma once

#include "isv_image.h"
#include "wide_math.h"

namespace qpi {
inline namespace QPI_ISA {

template <int Slot, int Type>
struct FlightValue;
template <int Slot>
struct FlightValue<Slot, QPI_SLOT_F32> {
  QPI_FN static float of(const IsvImage& isv) { return isv.number<Slot>(); }
};
template <int Slot>
struct FlightValue<Slot, QPI_SLOT_U32> {
  QPI_FN static uint32_t of(const IsvImage& isv) { return isv.bits<Slot>(); }
};
template <int Slot>
struct FlightValue<Slot, QPI_SLOT_U64> {
  QPI_FN static uint64_t of(const IsvImage& isv) { return isv.count<Slot>(); }
};

// The record of the last commit, as the state is now. A control call before any commit has none to bring up to date.
QPI_COLD_FN void record_flight(const IsvImage& isv) {
  const uint64_t number = isv.count<QPI_SLOT_commits>();
  if (number == 0) return;
  qpi_flight& record = isv.flight.records[(number - 1) % isv.flight.capacity];
#define QPI_WRITE(name, type) record.name = FlightValue<QPI_SLOT_##name, QPI_SLOT_##type>::of(isv);
  QPI_FLIGHT_MANIFEST(QPI_WRITE)
#undef QPI_WRITE
}

}  // namespace QPI_ISA
}  // namespace qpi
