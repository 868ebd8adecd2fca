// What was built and what the machine has.
#include <cstdio>
#include <new>
#include <string>

#include "../cpu/cpu.h"
#include "../gpu/gpu.h"
#include "status.h"

using namespace qpi;

extern "C" qpi_status qpi_build_info(char* text, size_t capacity, size_t* length) {
  if (text == nullptr && capacity > 0) return fail(QPI_ERROR_POINTER, "text is NULL");
  try {
    const KeepMessage keep;
    std::string json = "{\"version\": \"" + std::to_string(QPI_VERSION_MAJOR) + "." +
                       std::to_string(QPI_VERSION_MINOR) + "." + std::to_string(QPI_VERSION_PATCH) +
                       "\", \"abi\": " + std::to_string(QPI_ABI) +
                       ", \"cpu\": {\"cores\": " + std::to_string(cpu::usable_cores()) + ", \"kernels\": [";
    const char* separator = "";
    for (const cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
      if (!cpu::isa_supported(isa)) continue;
      json += separator + ("\"" + std::string(cpu::isa_name(isa)) + "\"");
      separator = ", ";
    }
    json += "]}, \"gpu\": {" + gpu::describe() + "}}";
    std::snprintf(text, capacity, "%s", json.c_str());
    if (length != nullptr) *length = json.size();
  } catch (const std::bad_alloc&) {
    return fail(QPI_ERROR_MEMORY, "no memory for the build information");
  }
  return QPI_SUCCESS;
}
