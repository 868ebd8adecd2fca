// The GPU backend of a library that was built without CUDA.
#include "../c_api/status.h"
#include "gpu.h"

namespace qpi::gpu {

namespace {
qpi_status refuse() {
  return fail(QPI_ERROR_NO_DEVICE,
              "this library was built without CUDA (QPI_CUDA=OFF); only device -1, the CPU, works");
}
}  // namespace

qpi_status plan_create(const qpi_problem&, bool, Plan*) { return refuse(); }
Choice choose(const Plan&, const qpi_problem&, int64_t) { return {}; }
qpi_status run(const Plan&, int32_t, const Choice&, const RowsArgs&, const FinishArgs&, qpi_stream_t) {
  return refuse();
}
qpi_status commit(int32_t, const IsvWords&, qpi_record*, qpi_stream_t) { return refuse(); }
qpi_status control(int32_t, const IsvWords&, qpi_stream_t) { return refuse(); }
qpi_status discard(int32_t, qpi_record*, qpi_stream_t) { return refuse(); }
qpi_status clear_faults(int32_t, const IsvWords&, qpi_stream_t) { return refuse(); }
qpi_status reset(int32_t, const IsvWords&, Workspace*, ResetParts, qpi_stream_t) { return refuse(); }
qpi_status seed_grad(int32_t, const float*, const float*, const float*, float*, float*, int64_t, qpi_stream_t) {
  return refuse();
}
qpi_status seed_controller(int32_t, float*, qpi_stream_t) { return refuse(); }
qpi_status check_pointers(int32_t, const NamedPointer*, int) { return refuse(); }

std::string describe() {
  return R"json("built": false, "kernels": [], "architectures": [], "usable": false, )json"
         R"json("reason": "built without CUDA (QPI_CUDA=OFF)", "devices": [])json";
}

}  // namespace qpi::gpu
