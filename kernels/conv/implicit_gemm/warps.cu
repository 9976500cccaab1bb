#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/warps_launch.cuh"

namespace voxserve::kernels::cuda {

std::vector<ConvBlock> WarpBlocks(int32_t out_channels) {
  const int32_t columns = out_channels <= 32 ? 32 : out_channels <= 64 ? 64 : 128;
  const ConvBlock default_block = {.rows = 128, .columns = columns, .split_k = 1, .uses_mma_sync = true};
  std::vector<ConvBlock> blocks = {default_block};
  ForEachWarpShape<kSliceBytes>([&](auto shape) {
    const ConvBlock block = WarpBlockOf<decltype(shape)>();
    if (HasColumnsFor(out_channels, block.columns) && block != default_block) blocks.push_back(block);
  });
  return blocks;
}

cudaError_t WarpImplicitGemm(const ImplicitGemmParams& params, cudaStream_t stream) {
  switch (params.operands.in.dtype) {
    case DType::kFloat16:
      return WarpImplicitGemmHalf(params, stream);
    case DType::kBfloat16:
      return WarpImplicitGemmBfloat16(params, stream);
    case DType::kFloat32:
      return WarpImplicitGemmTf32(params, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace voxserve::kernels::cuda
