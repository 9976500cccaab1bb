#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/warps_launch.cuh"

// The implicit GEMM kernel of warps.cuh, compiled for float16. instances.cuh says why each type has its own file.
namespace voxserve::kernels::cuda {

cudaError_t WarpImplicitGemmHalf(const ImplicitGemmParams& params, cudaStream_t stream) {
  return WarpImplicitGemmOf<__half>(params, params.operands.epilogue, stream);
}

}  // namespace voxserve::kernels::cuda
