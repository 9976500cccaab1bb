#include "kernels/rows/mlp/mlp.cuh"

namespace voxserve::kernels::cuda {

cudaError_t LaunchMlpBfloat16(const MlpShape& shape, const MlpParams& params, cudaStream_t stream) {
  return LaunchMlpOf<__nv_bfloat16>(shape, params, stream);
}

}  // namespace voxserve::kernels::cuda
