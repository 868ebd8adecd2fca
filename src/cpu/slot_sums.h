// The statistic of the slots that share a pack (statistic.h), field by field, so that lanes are added as packs.
#pragma once

#include "../../cuda/math/family.h"

namespace qpi {
inline namespace QPI_ISA {

template <int kRows>
struct SlotSums {
  double weighted_kl[kRows] = {}, weight[kRows] = {}, weighted_variance[kRows] = {};
  uint32_t rows[kRows] = {}, skipped[kRows] = {}, clipped[kRows] = {}, faults[kRows] = {};
  qpi_summary summary[kRows] = {};

  // `count` neighbouring rows that are all counted, none of them clipped.
  template <int count>
  void add_counted(int first, const float* w, const float* kl, const float* variance) {
    for (int i = 0; i < count; ++i) weighted_kl[first + i] += static_cast<double>(w[i]) * static_cast<double>(kl[i]);
    for (int i = 0; i < count; ++i) weight[first + i] += static_cast<double>(w[i]);
    for (int i = 0; i < count; ++i)
      weighted_variance[first + i] += static_cast<double>(w[i]) * static_cast<double>(variance[i]);
    for (int i = 0; i < count; ++i) rows[first + i] += 1;
  }

  void add(int i, const RowShare& share) {
    LaneSum sum;
    sum.add(share);
    weighted_kl[i] += sum.weighted_kl;
    weight[i] += sum.weight;
    weighted_variance[i] += sum.weighted_variance;
    rows[i] += sum.rows;
    skipped[i] += sum.skipped;
    clipped[i] += sum.clipped;
    faults[i] |= sum.faults;
  }

  // What a row of the family adds to the summary.
  void add_summary(int i, float w, const RowSummary<float>& row) { add_row(summary[i], w, row); }

  // The same slot's summary, once.
  SummarySlot close_summary(int first, int count) {
    for (; count > 1; count /= 2) {
      for (int i = 0; i < count / 2; ++i) {
        qpi_summary sum = summary[first + 2 * i];
        qpi::QPI_ISA::add_summary(sum, summary[first + 2 * i + 1]);
        summary[first + i] = sum;
      }
    }
    return {summary[first]};
  }

  // The slot whose lanes are first .. first + count - 1, once.
  StatSlot close(int first, int count) {
    StatSlot slot{pairwise(weighted_kl + first, count),
                  pairwise(weight + first, count),
                  pairwise(weighted_variance + first, count),
                  0,
                  0,
                  0,
                  0};
    for (int i = first; i < first + count; ++i) {
      slot.rows += rows[i];
      slot.skipped += skipped[i];
      slot.clipped += clipped[i];
      slot.faults |= faults[i];
    }
    return slot;
  }

 private:
  // Of a power of two, in place.
  static double pairwise(double* x, int count) {
    for (; count > 1; count /= 2) {
      for (int i = 0; i < count / 2; ++i) x[i] = x[2 * i] + x[2 * i + 1];
    }
    return x[0];
  }
};

}  // namespace QPI_ISA
}  // namespace qpi
