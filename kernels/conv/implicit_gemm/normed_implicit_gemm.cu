#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/normed_implicit_gemm.h"
#include "kernels/conv/implicit_gemm/normed_sums.cuh"
#include "kernels/conv/implicit_gemm/warp_groups_launch.cuh"

// The implicit GEMM kernel of warp_groups.cuh that normalizes its results, compiled for both types of 16 bits.
namespace voxserve::kernels::cuda {
namespace {

// Calls visit(shape) for each shape, as ForEachWarpGroupShape does. Blocks hold whole rows.
template <typename Visitor>
void ForEachNormedShape(const Visitor& visit) {
  visit(WarpGroupShape<kSliceBytes, 1, 32, 1, 4, 3, 1, Launches::kNormed>{});
  visit(WarpGroupShape<kSliceBytes, 1, 64, 3, 10, 1, 1, Launches::kNormed>{});
  visit(WarpGroupShape<kSliceBytes, 2, 64, 3, 8, 1, 1, Launches::kNormed>{});
  visit(WarpGroupShape<kSliceBytes, 1, 128, 3, 8, 1, 1, Launches::kNormed>{});
  visit(WarpGroupShape<kSliceBytes, 2, 128, 2, 6, 1, 1, Launches::kNormed>{});
  visit(WarpGroupShape<kSliceBytes, 1, 256, 3, 5, 1, 1, Launches::kNormed>{});
}

template <typename T>
cudaError_t Launch(const ImplicitGemmParams& params, const RowNormParams& norm, cudaStream_t stream) {
  const NormedArguments<T> arguments(params, norm);
  cudaError_t status = cudaErrorInvalidValue;
  ForEachNormedShape([&](auto shape) {
    using Shape = decltype(shape);
    if (params.block == BlockOf<Shape>()) status = LaunchWarpGroups<T, Shape>(arguments, stream);
  });
  return status;
}

}  // namespace

cudaError_t WarpGroupNormedImplicitGemm(const ImplicitGemmParams& params, const RowNormParams& norm,
                                        cudaStream_t stream) {
  return params.operands.in.dtype == DType::kFloat16 ? Launch<__half>(params, norm, stream)
                                                     : Launch<__nv_bfloat16>(params, norm, stream);
}

}  // namespace voxserve::kernels::cuda
