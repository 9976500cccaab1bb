#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/warps_launch.cuh"

// The implicit GEMM kernel of warps.cuh, compiled for float32 values, which it multiplies as TF32. instances.cuh says
// why each type has its own file.
namespace voxserve::kernels::cuda {

cudaError_t WarpImplicitGemmTf32(const ImplicitGemmParams& params, cudaStream_t stream) {
  return WarpImplicitGemmOf<float>(params, params.operands.epilogue, stream);
}

}  // namespace voxserve::kernels::cuda
