#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/warps_launch.cuh"

// The implicit GEMM kernel of warps.cuh, compiled for bfloat16. instances.cuh says why each type has its own file.
namespace voxserve::kernels::cuda {

cudaError_t WarpImplicitGemmBfloat16(const ImplicitGemmParams& params, cudaStream_t stream) {
  return WarpImplicitGemmOf<__nv_bfloat16>(params, params.operands.epilogue, stream);
}

}  // namespace voxserve::kernels::cuda
