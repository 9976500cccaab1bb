#pragma once

// This header lists the block shapes of the warp group kernel and launches the kernel with one of them. Only .cu files
// include it.

#include <atomic>
#include <cstdint>

#include "kernels/conv/implicit_gemm/launch_resident.cuh"
#include "kernels/conv/implicit_gemm/warp_groups.cuh"

namespace voxserve::kernels::cuda {

// Calls visit(shape) for each shape. The parameters of a shape are: bytes of a slice, multiplying warp groups, columns,
// copying groups, stages, blocks per SM, parts of the summed axis, and the launches that it serves. The number
// of groups is limited, since the sums of an instruction must fit the registers that a thread has when the kernel
// starts. Blocks of 160 and 192 columns (HasColumnsFor) have no code for 8 bits.
//
// If two blocks share an SM, one computes while the other begins or ends a tile. If a launch has few tiles, most SMs
// have only one block at a time. Then a shape of one block per SM is faster, which has more copying groups and a longer
// ring.
template <int kBytes, typename Visitor>
void ForEachWarpGroupShape(const Visitor& visit) {
  visit(WarpGroupShape<kBytes, 1, 32, 1, 4, 3>{});
  visit(WarpGroupShape<kBytes, 2, 32, 1, 5, 2, 1, Launches::kManyTiles>{});
  visit(WarpGroupShape<kBytes, 2, 32, 2, 8, 1, 1, Launches::kFewTiles>{});
  visit(WarpGroupShape<kBytes, 1, 64, 2, 6, 2, 1, Launches::kManyTiles>{});
  visit(WarpGroupShape<kBytes, 1, 64, 3, 10, 1, 1, Launches::kFewTiles>{});
  visit(WarpGroupShape<kBytes, 2, 64, 3, 8, 1>{});
  visit(WarpGroupShape<kBytes, 1, 96, 1, 5, 2, 1, Launches::kManyTiles>{});
  visit(WarpGroupShape<kBytes, 1, 96, 3, 9, 1, 1, Launches::kFewTiles>{});
  visit(WarpGroupShape<kBytes, 2, 96, 3, 7, 1>{});
  visit(WarpGroupShape<kBytes, 1, 128, 3, 8, 1>{});
  visit(WarpGroupShape<kBytes, 2, 128, 2, 6, 1>{});
  visit(WarpGroupShape<kBytes, 2, 128, 2, 6, 1, 2>{});
  visit(WarpGroupShape<kBytes, 1, 256, 3, 5, 1>{});
  visit(WarpGroupShape<kBytes, 2, 256, 2, 4, 1>{});
  visit(WarpGroupShape<kBytes, 2, 256, 2, 4, 1, 2>{});
  if constexpr (kBytes == kSliceBytes) {
    visit(WarpGroupShape<kBytes, 1, 160, 2, 7, 1>{});
    visit(WarpGroupShape<kBytes, 2, 160, 2, 6, 1>{});
    visit(WarpGroupShape<kBytes, 1, 192, 3, 6, 1>{});
    visit(WarpGroupShape<kBytes, 2, 192, 2, 5, 1>{});
    visit(WarpGroupShape<kBytes, 1, 128, 3, 8, 1, 1, Launches::kRotated>{});
    visit(WarpGroupShape<kBytes, 2, 128, 2, 6, 1, 1, Launches::kRotated>{});
  }
}

template <typename Shape>
constexpr ConvBlock BlockOf() {
  return {.rows = Shape::kRows, .columns = Shape::kColumns, .split_k = Shape::kSplitK};
}

// Returns true if shapes of Launches::kFewTiles serve the launch, and false if shapes of kManyTiles do. A convolution
// with few offsets has short tiles, which spend most of their time on their beginning and end. Other blocks on the SM
// hide that time, so such a launch always gets kManyTiles.
template <typename Shape, typename T>
bool HasFewTiles(const ImplicitGemmArguments<T>& arguments) {
  constexpr int64_t kFewTilesAnSm = 3;
  return arguments.tiles.num_offsets > kFewOffsets && NumBlockTiles<Shape>(arguments) <= kFewTilesAnSm * NumSms();
}

template <typename Shape, typename T>
bool Serves(const ImplicitGemmArguments<T>& arguments) {
  constexpr Launches kServed = Shape::kLaunches;
  if ((kServed == Launches::kRotated) != (arguments.angles != nullptr)) return false;
  if constexpr (kServed == Launches::kAny || kServed == Launches::kRotated) return true;
  return (kServed == Launches::kFewTiles) == HasFewTiles<Shape>(arguments);
}

template <typename T, typename Shape>
cudaError_t LaunchWarpGroups(const ArgumentsOf<T, Shape>& arguments, cudaStream_t stream) {
  static std::atomic<int> resident[kMaxDevices] = {};
  if constexpr (Shape::kSplitK > 1) {
    const bool has_memory = arguments.tiles.counters != nullptr && arguments.half_sums != nullptr;
    if (!has_memory || arguments.out_channels > kMaxSplitColumnTiles * Shape::kColumns) return cudaErrorInvalidValue;
  }
  return LaunchResident(WarpGroupImplicitGemmKernel<T, Shape>, arguments, Shape::kThreads, Shape::kSharedBytes,
                        /*waits_itself=*/true, NumBlockTiles<Shape>(arguments) * Shape::kSplitK, resident, stream);
}

template <typename T>
cudaError_t WarpGroupImplicitGemm(const ImplicitGemmParams& params, const EpilogueOf<T>& epilogue,
                                  cudaStream_t stream) {
  const ImplicitGemmArguments<T> arguments(params, epilogue);
  cudaError_t status = cudaErrorInvalidValue;
  ForEachWarpGroupShape<sizeof(T) == 1 ? kInt8SliceBytes : kSliceBytes>([&](auto shape) {
    using Shape = decltype(shape);
    if (params.block == BlockOf<Shape>() && Serves<Shape>(arguments)) {
      status = LaunchWarpGroups<T, Shape>(arguments, stream);
    }
  });
  return status;
}

}  // namespace voxserve::kernels::cuda
