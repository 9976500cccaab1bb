#pragma once

// This header lists the block shapes of the kernel for single warps and launches the kernel with one of them. Only .cu
// files include it.

#include <atomic>
#include <cstdint>

#include "kernels/conv/implicit_gemm/launch_resident.cuh"
#include "kernels/conv/implicit_gemm/warps.cuh"

namespace voxserve::kernels::cuda {

// Calls visit(shape) for each shape. The parameters of a shape are: bytes of a slice, rows, columns, threads, stages,
// and blocks per SM (if the SM's shared memory suffices for them). A warp has at least 32 columns, since SumsStore
// stores 32 columns at a time.
template <int kBytes, typename Visitor>
void ForEachWarpShape(const Visitor& visit) {
  visit(WarpShape<kBytes, 128, 32, 128, 3, 3>{});
  visit(WarpShape<kBytes, 128, 64, 128, 3, 3>{});
  visit(WarpShape<kBytes, 128, 128, 256, 3, 2>{});
  visit(WarpShape<kBytes, 64, 32, 128, 4, 4>{});
  visit(WarpShape<kBytes, 64, 64, 128, 3, 4>{});
  visit(WarpShape<kBytes, 64, 128, 128, 3, 3>{});
}

template <typename Shape>
constexpr ConvBlock WarpBlockOf() {
  return {.rows = Shape::kRows, .columns = Shape::kColumns, .split_k = 1, .uses_mma_sync = true};
}

template <typename T, typename Shape>
cudaError_t LaunchWarps(const ImplicitGemmArguments<T>& arguments, cudaStream_t stream) {
  static std::atomic<int> resident[kMaxDevices] = {};
  return LaunchResident(WarpImplicitGemmKernel<T, Shape>, arguments, Shape::kThreads, Shape::kSharedBytes,
                        /*waits_itself=*/false, NumBlockTiles<Shape>(arguments), resident, stream);
}

template <typename T>
cudaError_t WarpImplicitGemmOf(const ImplicitGemmParams& params, const EpilogueOf<T>& epilogue, cudaStream_t stream) {
  const ImplicitGemmArguments<T> arguments(params, epilogue);
  cudaError_t status = cudaErrorInvalidValue;
  ForEachWarpShape<sizeof(T) == 1 ? kInt8SliceBytes : kSliceBytes>([&](auto shape) {
    using Shape = decltype(shape);
    if (params.block == WarpBlockOf<Shape>()) status = LaunchWarps<T, Shape>(arguments, stream);
  });
  return status;
}

}  // namespace voxserve::kernels::cuda
