#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/warp_groups_launch.cuh"

// The implicit GEMM kernel of warp_groups.cuh, compiled for inputs of uint8 and weights of int8. instances.cuh says why
// each type has its own file.
namespace voxserve::kernels::cuda {

cudaError_t WarpGroupImplicitGemmUint8(const ImplicitGemmParams& params, const Int8Epilogue& epilogue,
                                       cudaStream_t stream) {
  return WarpGroupImplicitGemm<uint8_t>(params, epilogue, stream);
}

}  // namespace voxserve::kernels::cuda
