#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/warp_groups_launch.cuh"

namespace voxserve::kernels::cuda {

std::vector<ConvBlock> WarpGroupBlocks(int32_t out_channels) {
  std::vector<ConvBlock> blocks;
  ForEachWarpGroupShape([&](auto shape) {
    const ConvBlock block = BlockOf<decltype(shape)>();
    // Wider ones would have columns without channels, those that are much narrower would read the inputs often.
    const bool is_too_wide = block.columns > 32 && block.columns / 2 >= out_channels;
    const bool is_too_narrow = int64_t{block.columns} * 4 <= out_channels && block.columns < 128;
    const bool has_counters = block.split_k == 1 || out_channels <= kMaxSplitColumnTiles * block.columns;
    if (!is_too_wide && !is_too_narrow && has_counters) blocks.push_back(block);
  });
  return blocks;
}

}  // namespace voxserve::kernels::cuda
