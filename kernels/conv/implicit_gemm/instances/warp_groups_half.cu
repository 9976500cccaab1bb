#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/warp_groups_launch.cuh"

// The implicit GEMM kernel of warp_groups.cuh, compiled for float16. instances.cuh says why each type has its own file.
namespace voxserve::kernels::cuda {

cudaError_t WarpGroupImplicitGemmHalf(const ImplicitGemmParams& params, cudaStream_t stream) {
  return WarpGroupImplicitGemm<__half>(params, params.operands.epilogue, stream);
}

}  // namespace voxserve::kernels::cuda
