#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/warps_launch.cuh"

namespace voxserve::kernels::cuda {

cudaError_t WarpImplicitGemmTf32(const ImplicitGemmParams& params, cudaStream_t stream) {
  return WarpImplicitGemmOf<float>(params, stream);
}

}  // namespace voxserve::kernels::cuda
