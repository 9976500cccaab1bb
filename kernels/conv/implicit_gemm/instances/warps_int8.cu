#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/warps_launch.cuh"

// The implicit GEMM kernel of warps.cuh, compiled for inputs of int8 and weights of int8. instances.cuh says why each
// type has its own file.
namespace voxserve::kernels::cuda {

cudaError_t WarpImplicitGemmInt8(const ImplicitGemmParams& params, const Int8Epilogue& epilogue, cudaStream_t stream) {
  return WarpImplicitGemmOf<int8_t>(params, epilogue, stream);
}

}  // namespace voxserve::kernels::cuda
