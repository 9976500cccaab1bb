#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/warp_groups_launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

template <int kBytesOfSlice>
std::vector<ConvBlock> BlocksOf(int32_t out_channels) {
  std::vector<ConvBlock> blocks;
  ForEachWarpGroupShape<kBytesOfSlice>([&](auto shape) {
    using Shape = decltype(shape);
    // The shape for many tiles, or for launches that rotate nothing, has the same block.
    if (Shape::kLaunches == Launches::kFewTiles || Shape::kLaunches == Launches::kRotated) return;
    const ConvBlock block = BlockOf<Shape>();
    const bool has_counters = block.split_k == 1 || out_channels <= kMaxSplitColumnTiles * block.columns;
    if (HasColumnsFor(out_channels, block.columns) && has_counters) blocks.push_back(block);
  });
  return blocks;
}

}  // namespace

std::vector<ConvBlock> WarpGroupBlocks(DType dtype, int32_t out_channels) {
  return SizeOf(dtype) == 1 ? BlocksOf<kInt8SliceBytes>(out_channels) : BlocksOf<kSliceBytes>(out_channels);
}

}  // namespace voxserve::kernels::cuda
