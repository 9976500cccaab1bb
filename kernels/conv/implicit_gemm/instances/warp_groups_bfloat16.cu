#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/warp_groups_launch.cuh"

// The implicit GEMM kernel of warp_groups.cuh, compiled for bfloat16. instances.cuh says why each type has its own
// file.
namespace voxserve::kernels::cuda {

cudaError_t WarpGroupImplicitGemmBfloat16(const ImplicitGemmParams& params, cudaStream_t stream) {
  return WarpGroupImplicitGemm<__nv_bfloat16>(params, params.operands.epilogue, stream);
}

}  // namespace voxserve::kernels::cuda
