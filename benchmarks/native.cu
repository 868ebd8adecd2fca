// What the benchmark needs in C: the floor of the host's cost, and the seed kernels under their own launch shape.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdint>

#ifdef QPI_SEED_GRAD
#include QPI_SEED_GRAD
#include QPI_SEED_CONTROLLER
#endif

namespace {

// As many argument bytes as the library's kernels take: the first one what it needs itself and what the end of a step
// needs, the second one the latter and where the state is.
struct RowsArguments {
  char bytes[576];
};
struct EndArguments {
  char bytes[64];
};
struct FinishArguments {
  char bytes[392];
};

__global__ void rows(const __grid_constant__ int64_t, const __grid_constant__ EndArguments,
                     const __grid_constant__ RowsArguments) {}

__global__ void finish(const __grid_constant__ FinishArguments) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

cudaError_t launch_rows(const RowsArguments& arguments, const EndArguments& more, cudaStream_t stream) {
  int64_t how = 0;
  void* list[] = {&how, const_cast<EndArguments*>(&more), const_cast<RowsArguments*>(&arguments)};
  return cudaLaunchKernel(reinterpret_cast<const void*>(rows), dim3(1), dim3(128), list, 8192, stream);
}

cudaError_t launch_finish(const FinishArguments& arguments, bool overlap, cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(256);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, finish, arguments);
}

}  // namespace

// Host microseconds per step of `launches` bare launches, one number per batch in `microseconds`. The first launch has
// the arguments of the rows kernel, the others those of the finish kernel. Returns a cudaError_t.
extern "C" int qpi_bench_launches(int launches, int steps, int batches, int overlap, double* microseconds) {
  cudaStream_t stream;
  if (const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) return error;
  const RowsArguments first{};
  const EndArguments end{};
  const FinishArguments second{};
  cudaError_t error = cudaSuccess;
  const auto run = [&] {
    for (int step = 0; step < steps && error == cudaSuccess; ++step) {
      error = launch_rows(first, end, stream);
      for (int i = 1; i < launches && error == cudaSuccess; ++i) error = launch_finish(second, overlap != 0, stream);
    }
  };
  run();
  for (int batch = 0; batch < batches && error == cudaSuccess; ++batch) {
    if ((error = cudaStreamSynchronize(stream)) != cudaSuccess) break;
    const auto begun = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begun;
    microseconds[batch] = taken.count() / steps;
  }
  const cudaError_t last = cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  return error != cudaSuccess ? error : last;
}

#ifdef QPI_SEED_GRAD
// The whole step of the seed: a block of 11 threads per row, then one thread for the controller.
extern "C" int qpi_bench_seed_step(const float* q_logits, const float* pi_logits, const float* support, float* bus,
                                   float* pi_grad, int rows, cudaStream_t stream) {
  rl_q_pi_distill_grad<<<rows, N_ACTIONS, 0, stream>>>(q_logits, pi_logits, support, bus, pi_grad, rows);
  if (const cudaError_t error = cudaGetLastError()) return error;
  rl_q_distill_lambda_controller<<<1, 1, 0, stream>>>(bus);
  return cudaGetLastError();
}
#endif
