// The GPU backend: finds the device, keeps the caller's context, chooses kernels, launches.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cinttypes>
#include <cstdio>

#include "../../cuda/kernels/launch.h"
#include "../../cuda/kernels/rows_kernels.cuh"
#include "../../cuda/math/row_math.h"
#include "../c_api/status.h"
#include "gpu.h"

#ifndef QPI_CUDA_ARCHITECTURES
#define QPI_CUDA_ARCHITECTURES "unknown"
#endif

namespace qpi::gpu {

namespace {

constexpr int kOldestDriver = 13000;  // CUDA 13.0, driver 580

// ---- errors --------------------------------------------------------------------------------------------------------

// Reports a runtime error and takes it off this library's copy of the runtime.
qpi_status cuda_failed(int error, const char* what) {
  cudaGetLastError();
  const auto code = static_cast<cudaError_t>(error);
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction ||
      code == cudaErrorUnsupportedPtxVersion) {
    int device = -1, major = 0, minor = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    return fail(QPI_ERROR_NO_DEVICE,
                "GPU %d has compute capability %d.%d, and this library holds no kernels for it; it was built for %s",
                device, major, minor, QPI_CUDA_ARCHITECTURES);
  }
  return fail(QPI_ERROR_CUDA, "%s: %s (%s)", what, cudaGetErrorName(code), cudaGetErrorString(code));
}

#define QPI_CUDA_TRY(expression, what)                                                  \
  do {                                                                                  \
    if (const int error_ = (expression); error_ != 0) return cuda_failed(error_, what); \
  } while (0)

// ---- the driver, reached through the runtime ----

struct Driver {
  CUresult (*init)(unsigned) = nullptr;
  CUresult (*get_current)(CUcontext*) = nullptr;
  CUresult (*set_current)(CUcontext) = nullptr;
  CUresult (*get_device)(CUdevice*) = nullptr;
  CUresult (*pointer_attributes)(unsigned, CUpointer_attribute*, void**, CUdeviceptr) = nullptr;
  bool loaded = false;
};

template <class Function>
bool find(const char* name, Function* function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return false;
  }
  *function = reinterpret_cast<Function>(address);
  return true;
}

const Driver& driver() {
  static const Driver instance = [] {
    Driver d;
    d.loaded = find("cuInit", &d.init) && find("cuCtxGetCurrent", &d.get_current) &&
               find("cuCtxSetCurrent", &d.set_current) && find("cuCtxGetDevice", &d.get_device) &&
               find("cuPointerGetAttributes", &d.pointer_attributes);
    return d;
  }();
  return instance;
}

// Is there a driver that this build can use? Creates no context.
qpi_status check_driver() {
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) {
    cudaGetLastError();
    return fail(QPI_ERROR_NO_DEVICE, "no NVIDIA driver was found (libcuda.so.1)");
  }
  if (version < kOldestDriver) {
    return fail(QPI_ERROR_NO_DEVICE, "the NVIDIA driver supports CUDA %d.%d; this library needs driver 580 (CUDA 13.0)",
                version / 1000, version % 1000 / 10);
  }
  return QPI_SUCCESS;
}

qpi_status check_device(int32_t device) {
  QPI_TRY(check_driver());
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    cudaGetLastError();
    return fail(QPI_ERROR_NO_DEVICE, "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES?)");
  }
  if (error != cudaSuccess) {
    cudaGetLastError();
    return fail(QPI_ERROR_NO_DEVICE, "the GPUs cannot be listed: %s (%s)", cudaGetErrorName(error),
                cudaGetErrorString(error));
  }
  if (device >= count)
    return fail(QPI_ERROR_NO_DEVICE, "device is %" PRId32 "; this process sees %d GPU(s)", device, count);
  return QPI_SUCCESS;
}

// Makes `device` current and puts the caller's context back. Costs two driver calls where it is current already.
class DeviceGuard {
 public:
  DeviceGuard() = default;
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  ~DeviceGuard() {
    if (restore_) driver().set_current(before_);
  }

  qpi_status enter(int32_t device) {
    const Driver& d = driver();
    if (!d.loaded) {
      QPI_TRY(check_driver());
      return fail(QPI_ERROR_NO_DEVICE, "the NVIDIA driver lacks the functions that this library needs");
    }
    CUresult result = d.get_current(&before_);
    if (result == CUDA_ERROR_NOT_INITIALIZED) {
      QPI_TRY(check_device(device));
      result = d.init(0);
      if (result == CUDA_SUCCESS) result = d.get_current(&before_);
    }
    if (result != CUDA_SUCCESS) return fail(QPI_ERROR_CUDA, "cuCtxGetCurrent: error %d", static_cast<int>(result));
    if (before_ != nullptr) {
      CUdevice current = -1;
      if (d.get_device(&current) == CUDA_SUCCESS && current == device) return QPI_SUCCESS;
    }
    QPI_TRY(check_device(device));
    restore_ = true;
    QPI_CUDA_TRY(cudaSetDevice(device), "cudaSetDevice");
    return QPI_SUCCESS;
  }

 private:
  CUcontext before_ = nullptr;
  bool restore_ = false;
};

// Loading a module is fine while some stream of the process captures, if the thread says so.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// ---- choosing ----

TileShape shape_of(const qpi_problem& p) {
  const auto bytes = [](qpi_dtype dtype) { return dtype == QPI_FLOAT32 ? 4u : 2u; };
  return {static_cast<unsigned>(p.actions),
          static_cast<unsigned>(p.atoms),
          static_cast<unsigned>(tile_rows_of(p.actions, p.atoms)),
          bytes(p.q_dtype),
          bytes(p.pi_dtype),
          p.mode == QPI_MODE_WRITE ? 0u : bytes(p.grad_dtype),
          p.support_stride[0] == 0,
          p.legal_stride[0] == p.actions && p.legal_stride[1] == 1};
}

RowsLaunch launch_of(qpi_kernel kernel, int blocks, const KernelChoice& how, bool whole_step) {
  return {kernel, blocks, how.threads, how.shared_bytes, {how.chunk_items, how.buffers}, {how.block_rows, whole_step}};
}

qpi_status measure_choice(qpi_kernel kernel, const qpi_problem& problem, int multiprocessors, KernelChoice* choice) {
  int blocks = 0;
  QPI_CUDA_TRY(blocks_per_multiprocessor(launch_of(kernel, 1, *choice, false), problem.q_dtype, problem.atoms, &blocks),
               "occupancy of the rows kernel");
  choice->possible = blocks > 0;
  choice->resident_blocks = blocks * multiprocessors;
  return QPI_SUCCESS;
}

// The tile kernel with so many buffers, as many warps a multiprocessor as its registers and shared memory allow, but a
// divisor of 24 (kStatSlots), and among these with the largest chunks.
qpi_status measure_tile(const qpi_problem& problem, int buffers, size_t limit, int multiprocessors,
                        KernelChoice* best) {
  *best = {};
  const TileShape shape = shape_of(problem);
  const int unit = problem.atoms > kShortAtoms ? 32 / kLongPartials : 32;
  const int tile_items = static_cast<int>(shape.tile_rows * shape.actions);
  for (const int warps : {24, 12, 8, 6, 4, 3, 2, 1}) {
    const int of_block = warps % 4 == 0 ? 4 : warps % 2 == 0 ? 2 : 1;
    for (int units = 4; units > 0; --units) {
      if (units > 1 && (units - 1) * unit >= tile_items) continue;
      KernelChoice choice{};
      choice.threads = 32 * of_block;
      choice.chunk_items = units * unit;
      choice.buffers = buffers;
      choice.shared_bytes = tile_shared_bytes(shape, of_block, {choice.chunk_items, buffers});
      if (choice.shared_bytes > limit) continue;
      QPI_TRY(measure_choice(QPI_KERNEL_TILE, problem, multiprocessors, &choice));
      if (!choice.possible || choice.resident_blocks * of_block < warps * multiprocessors) continue;
      choice.resident_blocks = warps / of_block * multiprocessors;
      *best = choice;
      return QPI_SUCCESS;
    }
  }
  return QPI_SUCCESS;
}

// The block kernel with so many tiles to a block: a thread for each (row, action), and four for each row.
qpi_status measure_block(const qpi_problem& problem, int tiles, size_t limit, int multiprocessors, bool clusters,
                         KernelChoice* block) {
  *block = {};
  const TileShape shape = shape_of(problem);
  const int rows = tiles * static_cast<int>(shape.tile_rows);
  const int items = rows * static_cast<int>(problem.actions), lanes = rows * kPartials;
  const int wanted = ((items > lanes ? items : lanes) + 31) / 32 * 32;
  const int threads = wanted > kBlockMaxThreads ? kBlockMaxThreads : wanted < 64 ? 64 : wanted;
  KernelChoice choice{};
  choice.threads = threads;
  choice.shared_bytes = block_shared_bytes(shape, rows);
  choice.block_rows = rows;
  choice.cluster_blocks = 1;
  const bool fits = problem.atoms <= kShortAtoms && problem.actions <= kBlockMaxActions && rows >= 32 / kPartials &&
                    rows <= kBlockMaxRows && choice.shared_bytes <= limit;
  if (!fits) return QPI_SUCCESS;
  QPI_TRY(measure_choice(QPI_KERNEL_BLOCK, problem, multiprocessors, &choice));
  if (!choice.possible) return QPI_SUCCESS;
  for (int blocks = kMaxClusterBlocks; clusters && blocks > 1 && choice.cluster_blocks == 1; blocks /= 2) {
    bool room = false;
    QPI_CUDA_TRY(cluster_fits(launch_of(QPI_KERNEL_BLOCK, blocks, choice, true), problem.q_dtype, problem.atoms, &room),
                 "occupancy of the block kernel");
    if (room) choice.cluster_blocks = blocks;
  }
  *block = choice;
  return QPI_SUCCESS;
}

}  // namespace

qpi_status plan_create(const qpi_problem& problem, bool packed, Plan* plan) {
  QPI_TRY(check_device(problem.device));
  DeviceGuard guard;
  QPI_TRY(guard.enter(problem.device));
  const RelaxedCapture relaxed;

  const auto attribute = [&](cudaDeviceAttr which, int* value) {
    return static_cast<int>(cudaDeviceGetAttribute(value, which, problem.device));
  };
  int multiprocessors = 0, shared_limit = 0;
  QPI_CUDA_TRY(attribute(cudaDevAttrMultiProcessorCount, &multiprocessors), "cudaDeviceGetAttribute");
  QPI_CUDA_TRY(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared_limit), "cudaDeviceGetAttribute");
  const auto limit = static_cast<size_t>(shared_limit);
  // Clusters and programmatic launches came together; code for an older GPU, compiled by the driver, has neither.
  QPI_CUDA_TRY(finish_may_overlap(&plan->overlap), "loading the kernels");
  QPI_CUDA_TRY(load_kernels(limit, problem.atoms, plan->overlap), "loading the kernels");

  plan->stream = {};
  plan->stream.threads = kStreamThreads;
  QPI_TRY(measure_choice(QPI_KERNEL_STREAM, problem, multiprocessors, &plan->stream));
  plan->tile = plan->block[0] = plan->block[1] = {};
  // Far beyond shared memory the kernels' 32-bit sizes would wrap.
  constexpr int64_t kMaxRow = 1 << 16;
  if (packed && problem.actions * problem.atoms <= kMaxRow) {
    QPI_TRY(measure_tile(problem, 2, limit, multiprocessors, &plan->tile));
    // Few warps are better off with a chunk at a time, if that makes more of them.
    KernelChoice single;
    QPI_TRY(measure_tile(problem, 1, limit, multiprocessors, &single));
    const auto warps = [](const KernelChoice& choice) { return choice.resident_blocks * choice.threads / 32; };
    if (warps(plan->tile) < 8 * multiprocessors && warps(single) > warps(plan->tile)) plan->tile = single;
    // Below four warps a multiprocessor nothing hides the latencies.
    const bool starved = plan->tile.resident_blocks * plan->tile.threads < 4 * 32 * multiprocessors;
    if (starved && problem.kernel == QPI_KERNEL_AUTO) plan->tile.possible = false;
    for (int i = 0; i < 2; ++i)
      QPI_TRY(measure_block(problem, i + 1, limit, multiprocessors, plan->overlap, &plan->block[i]));
  }
  if ((problem.kernel == QPI_KERNEL_TILE || problem.kernel == QPI_KERNEL_BLOCK) && !plan->tile.possible) {
    const char* asked = problem.kernel == QPI_KERNEL_TILE ? "QPI_KERNEL_TILE" : "QPI_KERNEL_BLOCK";
    if (!packed) {
      return fail(QPI_ERROR_UNSUPPORTED, "kernel is %s, which needs packed arrays; these have strides", asked);
    }
    return fail(QPI_ERROR_UNSUPPORTED,
                "kernel is %s, but %d rows of %" PRId64 " actions and %" PRId64
                " atoms need more than the %zu bytes of shared memory that a block of GPU %d has",
                asked, tile_rows_of(problem.actions, problem.atoms), problem.actions, problem.atoms, limit,
                problem.device);
  }
  return QPI_SUCCESS;
}

Choice choose(const Plan& plan, const qpi_problem& problem, int64_t rows) {
  const auto at_most = [](int64_t a, int64_t b) { return static_cast<int>(a < b ? a : b); };
  const int limit = problem.max_blocks > 0 ? problem.max_blocks : INT32_MAX;
  const bool forced = problem.kernel != QPI_KERNEL_AUTO;

  const int tile_rows = tile_rows_of(problem.actions, problem.atoms);
  const int64_t tiles = tile_count(rows, tile_rows);
  const int slots = slots_in_use(rows, tile_rows);

  if (problem.kernel != QPI_KERNEL_STREAM && problem.kernel != QPI_KERNEL_TILE) {
    for (const KernelChoice& block : plan.block) {
      const int64_t blocks = block.possible ? (rows + block.block_rows - 1) / block.block_rows : INT64_MAX;
      if (blocks > block.cluster_blocks || blocks > limit) continue;
      return {QPI_KERNEL_BLOCK, static_cast<int>(blocks), block, true,
              forced ? "asked for" : "packed arrays, and few enough rows for one launch"};
    }
    if (plan.block[0].possible && tiles <= 2 * plan.block[0].resident_blocks && tiles <= limit) {
      return {QPI_KERNEL_BLOCK, static_cast<int>(tiles), plan.block[0], false,
              forced ? "asked for" : "packed arrays, and the GPU holds a block for every other tile at least"};
    }
  }
  if (problem.kernel != QPI_KERNEL_STREAM && plan.tile.possible) {
    const int warps = plan.tile.threads / 32;
    const int wanted = at_most((slots + warps - 1) / warps, plan.tile.resident_blocks);
    return {QPI_KERNEL_TILE, at_most(wanted, limit), plan.tile, false,
            forced ? "asked for" : "packed arrays whose tiles fit in shared memory"};
  }
  const int wanted = at_most(slots, plan.stream.resident_blocks);
  return {QPI_KERNEL_STREAM, at_most(wanted, limit), plan.stream, false,
          forced ? "asked for" : "strided arrays, or tiles too large for shared memory"};
}

// ---- running ----

qpi_status run(const Plan& plan, int32_t device, const Choice& choice, const RowsArgs& rows, const FinishArgs& finish,
               qpi_stream_t stream) {
  DeviceGuard guard;
  QPI_TRY(guard.enter(device));
  const RowsLaunch launch = launch_of(choice.kernel, choice.blocks, choice.how, choice.whole_step);
  QPI_CUDA_TRY(launch_rows(rows, finish, launch, stream), "launching the rows kernel");
  if (choice.whole_step) return QPI_SUCCESS;
  QPI_CUDA_TRY(launch_finish(finish, plan.overlap, stream), "launching the finish kernel");
  return QPI_SUCCESS;
}

namespace {
// One launch on `device`.
template <class Launch>
qpi_status launch_on(int32_t device, const char* what, Launch launch) {
  DeviceGuard guard;
  QPI_TRY(guard.enter(device));
  QPI_CUDA_TRY(launch(), what);
  return QPI_SUCCESS;
}
}  // namespace

qpi_status commit(int32_t device, const IsvWords& isv, qpi_record* record, qpi_stream_t stream) {
  return launch_on(device, "launching the commit kernel",
                   [&] { return launch_commit(isv, record, CommitParts::kObserveAndControl, stream); });
}
qpi_status control(int32_t device, const IsvWords& isv, qpi_stream_t stream) {
  return launch_on(device, "launching the control kernel", [&] { return launch_control(isv, stream); });
}
qpi_status discard(int32_t device, qpi_record* record, qpi_stream_t stream) {
  return launch_on(device, "launching the discard kernel", [&] { return launch_discard(record, stream); });
}
qpi_status clear_faults(int32_t device, const IsvWords& isv, qpi_stream_t stream) {
  return launch_on(device, "launching the clear-faults kernel", [&] { return launch_clear_faults(isv, stream); });
}
qpi_status reset(int32_t device, const IsvWords& isv, Workspace* workspace, ResetParts parts, qpi_stream_t stream) {
  return launch_on(device, "launching the reset kernel", [&] { return launch_reset(isv, workspace, parts, stream); });
}
qpi_status seed_grad(int32_t device, const float* q_logits, const float* pi_logits, const float* atom_supports,
                     float* isv, float* pi_grad_logits, int64_t rows, qpi_stream_t stream) {
  return launch_on(device, "launching the seed gradient kernel", [&] {
    return launch_seed_grad(q_logits, pi_logits, atom_supports, isv, pi_grad_logits, rows, stream);
  });
}
qpi_status seed_controller(int32_t device, float* isv, qpi_stream_t stream) {
  return launch_on(device, "launching the seed controller", [&] { return launch_seed_controller(isv, stream); });
}

qpi_status check_pointers(int32_t device, const NamedPointer* pointers, int count) {
  DeviceGuard guard;
  QPI_TRY(guard.enter(device));
  for (int i = 0; i < count; ++i) {
    if (pointers[i].pointer == nullptr) continue;
    // One question to the driver; the runtime's cudaPointerGetAttributes asks several. Of memory that CUDA does not
    // know, the type stays 0.
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED};
    unsigned type = 0;
    int ordinal = -1;
    unsigned managed = 0;  // the driver writes four bytes
    void* answers[] = {&type, &ordinal, &managed};
    const auto address = reinterpret_cast<CUdeviceptr>(pointers[i].pointer);
    // The numbers of CUresult are those of cudaError_t.
    QPI_CUDA_TRY(static_cast<int>(driver().pointer_attributes(3, asked, answers, address)), pointers[i].name);
    if (managed != 0) continue;
    if (type != CU_MEMORYTYPE_DEVICE) {
      return fail(QPI_ERROR_POINTER, "%s is %p, which is host memory; expected memory of GPU %" PRId32,
                  pointers[i].name, pointers[i].pointer, device);
    }
    if (ordinal != device) {
      return fail(QPI_ERROR_POINTER, "%s is %p, memory of GPU %d; expected memory of GPU %" PRId32, pointers[i].name,
                  pointers[i].pointer, ordinal, device);
    }
  }
  return QPI_SUCCESS;
}

namespace {
// Fit for a JSON string.
std::string without_quotes(std::string text) {
  for (char& c : text) {
    if (c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  return text;
}
}  // namespace

std::string describe() {
  const qpi_status status = check_device(0);
  std::string text = R"("built": true, "kernels": ["stream", "tile", "block"], "architectures": [)";
  // "75-real;80-real;...;120" -> a list of strings
  const char* separator = "";
  std::string item;
  for (const char* c = QPI_CUDA_ARCHITECTURES;; ++c) {
    if (*c == ';' || *c == ',' || *c == '\0') {
      if (!item.empty()) text += separator + ("\"" + item + "\"");
      separator = ", ";
      item.clear();
      if (*c == '\0') break;
    } else {
      item += *c;
    }
  }
  int driver_version = 0, runtime_version = 0;
  cudaDriverGetVersion(&driver_version);
  cudaRuntimeGetVersion(&runtime_version);
  char line[640];
  std::snprintf(line, sizeof line, "], \"cuda_runtime\": %d, \"cuda_driver\": %d, \"usable\": %s, \"reason\": \"%s\"",
                runtime_version, driver_version, status == QPI_SUCCESS ? "true" : "false",
                status == QPI_SUCCESS ? "" : without_quotes(qpi_last_error_message()).c_str());
  text += line;
  text += ", \"devices\": [";
  int count = 0;
  if (status == QPI_SUCCESS) cudaGetDeviceCount(&count);
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    std::snprintf(line, sizeof line,
                  "%s{\"ordinal\": %d, \"name\": \"%s\", \"compute_capability\": \"%d.%d\", \"multiprocessors\": %d, "
                  "\"memory_bytes\": %zu}",
                  device == 0 ? "" : ", ", device, properties.name, properties.major, properties.minor,
                  properties.multiProcessorCount, properties.totalGlobalMem);
    text += line;
  }
  cudaGetLastError();
  return text + "]";
}

}  // namespace qpi::gpu
