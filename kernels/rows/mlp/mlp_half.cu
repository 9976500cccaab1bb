#include "kernels/rows/mlp/mlp.cuh"

namespace voxserve::kernels::cuda {

cudaError_t LaunchMlpHalf(const MlpShape& shape, const MlpParams& params, cudaStream_t stream) {
  return LaunchMlpOf<__half>(shape, params, stream);
}

}  // namespace voxserve::kernels::cuda
