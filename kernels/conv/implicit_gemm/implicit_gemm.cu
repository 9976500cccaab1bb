#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int kHopper = 9;  // the major compute capability that has warp groups

// 0 where there is no GPU.
int ComputeCapabilityMajor() {
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) return 0;
  return major;
}

bool HasWarpGroups(DType dtype) { return dtype != DType::kFloat32 && ComputeCapabilityMajor() == kHopper; }

// It follows from the convolution alone, not from its rows: sums are split alike whatever the batch.
ConvBlock DefaultBlock(DType dtype, int32_t num_offsets, int32_t in_channels, int32_t out_channels) {
  if (!HasWarpGroups(dtype)) return WarpBlocks(out_channels).front();
  if (out_channels <= 32) return {.rows = 64, .columns = 32, .split_k = 1};
  if (out_channels <= 64) return {.rows = 64, .columns = 64, .split_k = 1};
  if (out_channels <= 96) {
    if (num_offsets <= 8) return {.rows = 256, .columns = 96, .split_k = 1};
    return {.rows = 128, .columns = 96, .split_k = 1};
  }
  // Wide convolutions stand at coarse levels, which have fewer tiles than a GPU has multiprocessors.
  const bool is_wide = out_channels > 128 && out_channels <= kMaxSplitColumnTiles * 256;
  if (is_wide && in_channels >= 128 && num_offsets > 8) return {.rows = 128, .columns = 256, .split_k = 2};
  return {.rows = 128, .columns = 128, .split_k = 1};
}

ConvBlock ChosenBlock(const ImplicitGemmParams& params) {
  if (params.block.rows != 0) return params.block;
  const ConvOperands& operands = params.operands;
  return DefaultBlock(operands.in.dtype, params.tiles.num_offsets, operands.in.channels, operands.out.channels);
}

}  // namespace

std::vector<ConvBlock> ImplicitGemmBlocks(DType dtype, int32_t out_channels) {
  const bool has_features = dtype == DType::kFloat16 || dtype == DType::kBfloat16 || dtype == DType::kFloat32;
  if (!has_features || ComputeCapabilityMajor() < 8) return {};
  std::vector<ConvBlock> blocks;
  if (HasWarpGroups(dtype)) blocks = WarpGroupBlocks(out_channels);
  const std::vector<ConvBlock> by_warps = WarpBlocks(out_channels);
  blocks.insert(blocks.end(), by_warps.begin(), by_warps.end());
  return blocks;
}

size_t ImplicitGemmWorkspaceBytes(const ImplicitGemmParams& params) {
  const ConvBlock block = ChosenBlock(params);
  if (block.split_k <= 1) return 0;
  const int64_t column_tiles = (params.operands.out.channels + block.columns - 1) / block.columns;
  return static_cast<size_t>(NumTilePlaces(params.tiles.out_capacity) * column_tiles * block.columns * block.split_k) *
         sizeof(float);
}

cudaError_t ImplicitGemm(const ImplicitGemmParams& params, cudaStream_t stream) {
  const NvtxRange range("ImplicitGemm");
  const ConvOperands& operands = params.operands;
  if (params.tiles.out_capacity == 0) return cudaSuccess;
  if (params.tiles.out_capacity > std::numeric_limits<int32_t>::max() - kMaxBlockTileRows ||
      operands.in.pitch_bytes() > std::numeric_limits<int32_t>::max()) {
    return cudaErrorInvalidValue;
  }
  // An offset and the part of its channels are noted in 16 bits each.
  constexpr int32_t kMost = std::numeric_limits<int16_t>::max();
  if (params.tiles.num_offsets > kMost || operands.in.channels > kMost) return cudaErrorInvalidValue;
  if (ComputeCapabilityMajor() < 8) return cudaErrorInvalidValue;
  ImplicitGemmParams chosen = params;
  chosen.block = ChosenBlock(params);
  if (chosen.block.by_warps) return WarpImplicitGemm(chosen, stream);
  if (!HasWarpGroups(operands.in.dtype)) return cudaErrorInvalidValue;
  return operands.in.dtype == DType::kFloat16 ? WarpGroupImplicitGemmHalf(chosen, stream)
                                              : WarpGroupImplicitGemmBfloat16(chosen, stream);
}

}  // namespace voxserve::kernels::cuda
