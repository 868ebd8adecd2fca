/* The two seed kernels by name, from the fatbin that ships with the package, as their owner launches them: driver API
 * alone, one block of 11 threads a row, all state on the ISV bus in device memory. The library itself is not linked.
 *
 *     seed_kernels "$(python -c 'import qpi_distill; print(qpi_distill.get_seed_fatbin())')" */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 64, ACTIONS = 11, ATOMS = 21, STEPS = 200 };
enum { LAM = 486, TAU = 487, KL_EMA = 488, KL_TARGET = 491, KL_ALPHA = 493, BUS_WORDS = 494 };

static void check(CUresult result, const char* call) {
  const char* name = NULL;
  if (result == CUDA_SUCCESS) return;
  cuGetErrorName(result, &name);
  fprintf(stderr, "%s: %s\n", call, name ? name : "an error without a name");
  exit(1);
}
#define CHECK(call) check(call, #call)

static CUdeviceptr to_device(const void* host, size_t bytes) {
  CUdeviceptr device;
  CHECK(cuMemAlloc(&device, bytes));
  CHECK(cuMemcpyHtoD(device, host, bytes));
  return device;
}

/* The whole file in memory; the driver takes from it what fits the GPU. */
static void* read_file(const char* path) {
  FILE* file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) {
    perror(path);
    exit(1);
  }
  const long size = ftell(file);
  void* data = size > 0 ? malloc((size_t)size) : NULL;
  rewind(file);
  if (!data || fread(data, 1, (size_t)size, file) != (size_t)size) {
    fprintf(stderr, "%s cannot be read\n", path);
    exit(1);
  }
  fclose(file);
  return data;
}

static int argmax(const float* values) {
  int best = 0;
  for (int a = 1; a < ACTIONS; ++a)
    if (values[a] > values[best]) best = a;
  return best;
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s qpi_seed_kernels.fatbin\n", argv[0]);
    return 2;
  }

  CUdevice device;
  CUcontext context;
  CUstream stream;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

  CUmodule module;
  CUfunction distill_grad, lambda_controller;
  void* fatbin = read_file(argv[1]);
  CHECK(cuModuleLoadData(&module, fatbin));
  free(fatbin);
  CHECK(cuModuleGetFunction(&distill_grad, module, "rl_q_pi_distill_grad"));
  CHECK(cuModuleGetFunction(&lambda_controller, module, "rl_q_distill_lambda_controller"));

  /* In state b the critic expects +4 of action b % 11 and -4 of the others. The policy starts uniform. */
  static float q_logits[ROWS][ACTIONS][ATOMS], pi_logits[ROWS][ACTIONS], pi_grad[ROWS][ACTIONS];
  float support[ATOMS], bus[BUS_WORDS] = {0};
  for (int z = 0; z < ATOMS; ++z) support[z] = (float)(z - 10);
  for (int b = 0; b < ROWS; ++b)
    for (int a = 0; a < ACTIONS; ++a) q_logits[b][a][a == b % ACTIONS ? 14 : 6] = 60;
  bus[LAM] = 0.1f;
  bus[TAU] = 2.0f;
  bus[KL_TARGET] = 0.05f;
  bus[KL_ALPHA] = 0.05f;

  CUdeviceptr q = to_device(q_logits, sizeof q_logits), pi = to_device(pi_logits, sizeof pi_logits);
  CUdeviceptr atoms = to_device(support, sizeof support), isv = to_device(bus, sizeof bus);
  CUdeviceptr grad = to_device(pi_grad, sizeof pi_grad);
  int rows = ROWS;
  void* grad_arguments[] = {&q, &pi, &atoms, &isv, &grad, &rows};
  void* control_arguments[] = {&isv};

  for (int step = 0; step < STEPS; ++step) {
    /* In a real agent the policy gradient is already in the buffer, and all of this stays on the device. */
    CHECK(cuMemsetD32Async(grad, 0, ROWS * ACTIONS, stream));
    CHECK(cuLaunchKernel(distill_grad, ROWS, 1, 1, ACTIONS, 1, 1, 0, stream, grad_arguments, NULL));
    CHECK(cuLaunchKernel(lambda_controller, 1, 1, 1, 1, 1, 1, 0, stream, control_arguments, NULL));
    CHECK(cuMemcpyDtoHAsync(pi_grad, grad, sizeof pi_grad, stream));
    CHECK(cuMemcpyDtoHAsync(bus, isv, sizeof bus, stream));
    CHECK(cuStreamSynchronize(stream));
    if (step == 0) printf("first gradient %.7f, kl %.7f, lam %.7f\n", pi_grad[0][0], bus[KL_EMA], bus[LAM]);
    for (int b = 0; b < ROWS; ++b)
      for (int a = 0; a < ACTIONS; ++a) pi_logits[b][a] -= pi_grad[b][a];
    CHECK(cuMemcpyHtoDAsync(pi, pi_logits, sizeof pi_logits, stream));
  }

  int agree = 0;
  for (int b = 0; b < ROWS; ++b) agree += argmax(pi_logits[b]) == b % ACTIONS;
  printf("critic and policy agree on %d of %d states; kl %.4f, lam %.3f\n", agree, (int)ROWS, bus[KL_EMA], bus[LAM]);

  const CUdeviceptr buffers[] = {q, pi, atoms, isv, grad};
  for (size_t i = 0; i < sizeof buffers / sizeof *buffers; ++i) CHECK(cuMemFree(buffers[i]));
  CHECK(cuModuleUnload(module));
  CHECK(cuStreamDestroy(stream));
  CHECK(cuDevicePrimaryCtxRelease(device));
  return agree == ROWS ? 0 : 1;
}
