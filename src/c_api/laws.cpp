// The registry of control laws and their presets, at run time.
#include <qpi_distill.h>

#include <cinttypes>

#include "status.h"

namespace qpi {

namespace {

#define QPI_INFO(name, input, formula, source) {#name, QPI_LAW_INPUT_##input, formula, source},
constexpr qpi_law_info kLamLaws[] = {QPI_LAM_LAWS(QPI_INFO)};
constexpr qpi_law_info kTauLaws[] = {QPI_TAU_LAWS(QPI_INFO)};
#undef QPI_INFO

// The values' number follows from them: an entry without a slot would be lam with the value 0, which no preset sets.
constexpr qpi_preset_info counted(qpi_preset_info preset) {
  while (preset.count < QPI_PRESET_VALUES && preset.values[preset.count].value != 0.0) ++preset.count;
  return preset;
}

#define QPI_VALUE(slot, value) {QPI_SLOT_##slot, value},
#define QPI_PRESET(name, law, values, source) counted({#name, QPI_LAM_LAW_##law, 0, {values}, source}),
constexpr qpi_preset_info kPresets[] = {QPI_PRESETS(QPI_PRESET, QPI_VALUE)};
#undef QPI_PRESET
#undef QPI_VALUE
constexpr int32_t kPresetCount = sizeof kPresets / sizeof kPresets[0];

qpi_status law_info(const qpi_law_info* laws, int32_t count, int32_t law, qpi_law_info* info) {
  if (info == nullptr) return fail(QPI_ERROR_POINTER, "info is NULL");
  if (law < 0 || law >= count)
    return fail(QPI_ERROR_VALUE, "law is %" PRId32 "; expected 0 to %" PRId32, law, count - 1);
  *info = laws[law];
  return QPI_SUCCESS;
}

}  // namespace

}  // namespace qpi

using namespace qpi;

extern "C" {

qpi_status qpi_lam_law_info(int32_t law, qpi_law_info* info) {
  return law_info(kLamLaws, QPI_LAM_LAW_COUNT, law, info);
}

qpi_status qpi_tau_law_info(int32_t law, qpi_law_info* info) {
  return law_info(kTauLaws, QPI_TAU_LAW_COUNT, law, info);
}

int32_t qpi_preset_count(void) { return kPresetCount; }

qpi_status qpi_preset_get(int32_t preset, qpi_preset_info* info) {
  if (info == nullptr) return fail(QPI_ERROR_POINTER, "info is NULL");
  if (preset < 0 || preset >= kPresetCount)
    return fail(QPI_ERROR_VALUE, "preset is %" PRId32 "; expected 0 to %" PRId32, preset, kPresetCount - 1);
  *info = kPresets[preset];
  return QPI_SUCCESS;
}

}  // extern "C"
