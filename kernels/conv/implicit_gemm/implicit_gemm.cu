#include <algorithm>
#include <initializer_list>
#include <limits>
#include <vector>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/implicit_gemm.h"
#include "kernels/conv/implicit_gemm/instances.cuh"
#include "kernels/conv/implicit_gemm/int8_implicit_gemm.h"
#include "kernels/conv/implicit_gemm/linear_rows.h"
#include "kernels/conv/implicit_gemm/normed_implicit_gemm.h"
#include "kernels/conv/implicit_gemm/slices.h"
#include "kernels/core/device_code.h"
#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

bool AreFactors(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBfloat16 || dtype == DType::kFloat32;
}

bool HasServedTypes(const ConvOperands& operands) {
  const DType dtype = operands.in.dtype;
  const ConstRows& residual = operands.epilogue.residual;
  return AreFactors(dtype) && (operands.out.dtype == dtype || operands.out.dtype == DType::kFloat32) &&
         (residual.data == nullptr || residual.dtype == dtype);
}

bool HasWarpGroups(DType dtype) { return dtype != DType::kFloat32 && CodeVersion() == kWarpGroupCode; }

// Returns the blocks for inputs of a type that the kernels multiply.
std::vector<ConvBlock> BlocksOf(DType dtype, int32_t out_channels) {
  if (CodeVersion() < kTensorCoreCode) return {};
  std::vector<ConvBlock> blocks;
  if (HasWarpGroups(dtype)) blocks = WarpGroupBlocks(dtype, out_channels);
  const std::vector<ConvBlock> warp_blocks = WarpBlocks(out_channels);
  blocks.insert(blocks.end(), warp_blocks.begin(), warp_blocks.end());
  return blocks;
}

// Returns true if kernels that add shortcuts can read this one.
bool HasReadableShortcut(const ImplicitGemmParams& params) {
  const ConstRows& in = params.operands.in;
  const ConstRows& of_shortcut = params.operands.shortcut_in;
  return params.tiles.out_rows != nullptr && of_shortcut.dtype == in.dtype && HasWholeVectors(in) &&
         HasWholeVectors(of_shortcut);
}

// Returns false if the params ask for labels that no kernel can write.
bool CanWriteLabels(const ImplicitGemmParams& params) {
  if (params.labels.data == nullptr) return true;
  const ConvOperands& operands = params.operands;
  const DType dtype = params.labels.dtype;
  return (dtype == DType::kUint8 || dtype == DType::kUint16) && params.block.rows == 0 &&
         operands.out.channels <= kMaxLabelChannels && operands.epilogue.residual.data == nullptr &&
         operands.epilogue.activation == Activation();
}

// Returns true if blocks of warp groups have code that rotates.
bool HasRotatingCode(const ConvBlock& block) { return block.columns == 128 && block.split_k == 1; }

// Returns false if the params ask for a rotation that no kernel can do.
bool CanRotate(const ImplicitGemmParams& params) {
  const PairRotation& rotation = params.rotation;
  if (rotation.angles.data == nullptr) return true;
  const ConvOperands& operands = params.operands;
  const bool stores_sums = params.labels.data == nullptr && operands.epilogue.residual.data == nullptr &&
                           operands.epilogue.activation == Activation();
  return stores_sums && operands.in.dtype != DType::kFloat32 && operands.out.dtype == operands.in.dtype &&
         rotation.num_columns % 2 == 0 && rotation.angles.dtype == DType::kFloat32 && rotation.head_pairs > 0 &&
         rotation.angles.channels == AngleTableChannels(rotation.head_pairs) &&
         CommonAlignment().Add(rotation.angles).bytes() >= static_cast<int64_t>(sizeof(float2));
}

// Returns true if blocks of warp groups have code that normalizes rows of so many channels.
bool HasNormingCode(const ConvBlock& block, int32_t out_channels) {
  constexpr int32_t kMostSums = 128 * 128;  // with more, registers spill, and two kernels are faster
  return block.columns == out_channels && block.split_k == 1 && !block.uses_mma_sync &&
         (block.rows == 64 || block.columns > 32) && block.rows * block.columns <= kMostSums;
}

// Returns true if blocks of warp groups that hold whole rows can compute the norm.
bool CanNorm(const ImplicitGemmParams& params, const RowNormParams& norm) {
  const ConvOperands& operands = params.operands;
  const Rows& second = norm.second.out;
  const DType dtype = operands.in.dtype;
  const bool has_type = HasServedTypes(operands) && operands.out.dtype == dtype && norm.out.dtype == dtype &&
                        (norm.residual.data == nullptr || norm.residual.dtype == dtype) &&
                        (second.data == nullptr || second.dtype == dtype);
  const bool is_plain = operands.epilogue.residual.data == nullptr && params.labels.data == nullptr &&
                        params.rotation.angles.data == nullptr && operands.epilogue.activation == Activation() &&
                        norm.activation == Activation();
  const int64_t alignment = CommonAlignment().Add(norm.out).Add(norm.residual).Add(second).bytes();
  return norm.kind == RowNorm::kLayerNorm && has_type && HasNormedRows(operands.out.channels) && is_plain &&
         alignment == kVectorBytes;
}

// Returns true if the sizes fit the kernels' indices.
bool IsWithinLimits(const ImplicitGemmParams& params) {
  const ConstRows& in = params.operands.in;
  const ConstRows& of_shortcut = params.operands.shortcut_in;
  if (params.tiles.out_capacity > std::numeric_limits<int32_t>::max() - kMaxBlockTileRows ||
      std::max(in.pitch_bytes(), of_shortcut.pitch_bytes()) > std::numeric_limits<int32_t>::max()) {
    return false;
  }
  // Within these limits the number of slices fits 32 bits, and so does a slice's place among the weights, in units of
  // 16 bytes.
  constexpr int32_t kMost = std::numeric_limits<int16_t>::max();
  if (params.tiles.num_offsets > kMost || std::max(in.channels, of_shortcut.channels) > kMost) return false;
  const SliceAxis axis(params.tiles.num_offsets, in.channels, in.dtype);
  const int64_t weight_vectors = int64_t{axis.num_slices} * PaddedOutChannels(params.operands.out.channels) *
                                 (SliceBytesOf(in.dtype) / kSliceVectorBytes);
  return weight_vectors <= std::numeric_limits<int32_t>::max();
}

// Returns what a convolution in 8 bits has in common with others.
ImplicitGemmParams WithoutEpilogue(const Int8ImplicitGemmParams& params) {
  return {.tiles = params.tiles,
          .operands = {.in = params.in,
                       .out = params.out,
                       .weights = params.weights,
                       .shortcut_in = params.shortcut_in,
                       .shortcut_weights = params.shortcut_weights},
          .block = params.block,
          .workspace = params.workspace};
}

bool IsInt8(DType dtype) { return dtype == DType::kUint8 || dtype == DType::kInt8; }

bool HasServedTypes(const Int8ImplicitGemmParams& params) {
  const auto is_value = [](DType dtype) {
    return IsInt8(dtype) || dtype == DType::kFloat16 || dtype == DType::kFloat32;
  };
  const ConstRows& residual = params.epilogue.residual;
  return IsInt8(params.in.dtype) && is_value(params.out.dtype) &&
         (residual.data == nullptr || is_value(residual.dtype)) && params.epilogue.multiplier != nullptr;
}

int64_t NumItems(const ConvBlock& block, int64_t num_rows, int32_t out_channels) {
  return (num_rows + block.rows - 1) / block.rows * NumTilesOfColumns(out_channels, block.columns);
}

// Returns the first block of a list, sorted from large to small, that gives at least three work items per two
// multiprocessors, or the last block if none does. All blocks add a sum's products in the same order, so the choice
// does not change the result.
ConvBlock LargestThatFills(std::initializer_list<ConvBlock> blocks, int64_t num_rows, int32_t out_channels) {
  const int64_t wanted = (int64_t{3} * NumSms() + 1) / 2;
  for (const ConvBlock& block : blocks) {
    if (NumItems(block, num_rows, out_channels) >= wanted) return block;
  }
  return *(blocks.end() - 1);
}

// Returns the columns of the default block for more than 96 channels, if multiprocessors have enough to do. With few
// offsets a row is gathered quickly, so empty columns cost more than another tile of columns.
int32_t WideColumns(DType dtype, int32_t out_channels, bool has_few_offsets) {
  if (IsInt8(dtype)) return out_channels <= 128 || has_few_offsets ? 128 : 256;
  return has_few_offsets ? ColumnsOfFewestEmpty(out_channels) : ColumnsOfFewestTiles(out_channels);
}

// Returns a block without split sums, so that a row's bytes do not depend on the rest of the batch.
ConvBlock DefaultBlock(const ImplicitGemmParams& params) {
  const int32_t out_channels = params.operands.out.channels;
  const int64_t num_rows = std::min(params.tiles.out_capacity, params.operands.out.capacity);
  if (!HasWarpGroups(params.operands.in.dtype)) return WarpBlocks(out_channels).front();
  constexpr auto kBlock = [](int32_t rows, int32_t columns) {
    return ConvBlock{.rows = rows, .columns = columns, .split_k = 1};
  };
  if (params.rotation.angles.data != nullptr) {
    return LargestThatFills({kBlock(128, 128), kBlock(64, 128)}, num_rows, out_channels);
  }
  if (out_channels <= 32 && params.labels.data == nullptr) return kBlock(64, 32);
  // Choosing labels takes longer than the products, and blocks of 128 rows give a multiprocessor more warps for it.
  if (out_channels <= 32) return LargestThatFills({kBlock(128, 32), kBlock(64, 32)}, num_rows, out_channels);
  if (out_channels <= 64) return LargestThatFills({kBlock(128, 64), kBlock(64, 64)}, num_rows, out_channels);
  const bool has_few_offsets = params.tiles.num_offsets <= kFewOffsets;
  if (out_channels <= 96) {
    if (has_few_offsets) return kBlock(64, 96);
    return LargestThatFills({kBlock(128, 96), kBlock(64, 96)}, num_rows, out_channels);
  }
  // Narrower blocks gather each row more often, which pays only where multiprocessors would have nothing to do.
  const bool leaves_sms_idle = NumItems(kBlock(64, 128), num_rows, out_channels) < NumSms();
  if (leaves_sms_idle && HasColumnsFor(out_channels, 64)) return kBlock(64, 64);
  const int32_t columns = WideColumns(params.operands.in.dtype, out_channels, has_few_offsets);
  const auto num_items = [&](const ConvBlock& block) { return NumItems(block, num_rows, out_channels); };
  if (columns == 160 || columns == 192) {
    // A tile of few offsets ends soon, so half of the multiprocessors with full tiles are faster than all with halves.
    if (has_few_offsets) return kBlock(2 * num_items(kBlock(128, columns)) >= NumSms() ? 128 : 64, columns);
    if (num_items(kBlock(64, columns)) < NumSms()) return kBlock(64, 128);
  }
  if (columns < 256) return LargestThatFills({kBlock(128, columns), kBlock(64, columns)}, num_rows, out_channels);
  return LargestThatFills({kBlock(128, 256), kBlock(64, 256), kBlock(64, 128)}, num_rows, out_channels);
}

}  // namespace

std::vector<ConvBlock> ImplicitGemmBlocks(DType dtype, int32_t out_channels) {
  return AreFactors(dtype) ? BlocksOf(dtype, out_channels) : std::vector<ConvBlock>();
}

size_t ImplicitGemmWorkspaceBytes(const ImplicitGemmParams& params) {
  const ConvBlock& block = params.block;
  if (block.rows == 0 || block.split_k <= 1) return 0;  // the default does not split sums
  const int64_t column_tiles = (params.operands.out.channels + block.columns - 1) / block.columns;
  return static_cast<size_t>(NumTilePlaces(params.tiles.out_capacity) * column_tiles * block.columns * block.split_k) *
         sizeof(float);
}

bool ImplicitGemmAddsShortcut(const ImplicitGemmParams& params) {
  return HasWarpGroups(params.operands.in.dtype) && !params.block.uses_mma_sync && HasReadableShortcut(params);
}

cudaError_t ImplicitGemm(const ImplicitGemmParams& params, cudaStream_t stream) {
  const NvtxRange range("ImplicitGemm");
  const ConvOperands& operands = params.operands;
  if (!HasServedTypes(operands) || !CanWriteLabels(params) || !CanRotate(params)) return cudaErrorInvalidValue;
  const ConstRows& of_shortcut = operands.shortcut_in;
  if (of_shortcut.data != nullptr && !ImplicitGemmAddsShortcut(params)) return cudaErrorInvalidValue;
  if (params.tiles.out_capacity == 0) return cudaSuccess;
  if (!IsWithinLimits(params) || CodeVersion() < kTensorCoreCode) return cudaErrorInvalidValue;
  const cudaError_t linear_status = LinearRows(params, stream);
  if (linear_status != cudaErrorNotSupported) return linear_status;
  ImplicitGemmParams chosen = params;
  if (chosen.block.rows == 0) chosen.block = DefaultBlock(params);
  if (chosen.block.uses_mma_sync) return WarpImplicitGemm(chosen, stream);
  if (!HasWarpGroups(operands.in.dtype)) return cudaErrorInvalidValue;
  if (params.rotation.angles.data != nullptr && !HasRotatingCode(chosen.block)) return cudaErrorInvalidValue;
  return operands.in.dtype == DType::kFloat16 ? WarpGroupImplicitGemmHalf(chosen, stream)
                                              : WarpGroupImplicitGemmBfloat16(chosen, stream);
}

bool ImplicitGemmNorms(const ImplicitGemmParams& params, const RowNormParams& norm) {
  if (!HasWarpGroups(params.operands.in.dtype) || !CanNorm(params, norm)) return false;
  return HasNormingCode(params.block.rows == 0 ? DefaultBlock(params) : params.block, params.operands.out.channels);
}

cudaError_t NormedImplicitGemm(const ImplicitGemmParams& params, const RowNormParams& norm, cudaStream_t stream) {
  const NvtxRange range("NormedImplicitGemm");
  const ConvOperands& operands = params.operands;
  if (!ImplicitGemmNorms(params, norm)) return cudaErrorInvalidValue;
  if (operands.shortcut_in.data != nullptr && !ImplicitGemmAddsShortcut(params)) return cudaErrorInvalidValue;
  if (params.tiles.out_capacity == 0) return cudaSuccess;
  if (!IsWithinLimits(params)) return cudaErrorInvalidValue;
  ImplicitGemmParams chosen = params;
  if (chosen.block.rows == 0) chosen.block = DefaultBlock(params);
  return WarpGroupNormedImplicitGemm(chosen, norm, stream);
}

std::vector<ConvBlock> Int8ImplicitGemmBlocks(int32_t out_channels) { return BlocksOf(DType::kInt8, out_channels); }

size_t Int8ImplicitGemmWorkspaceBytes(const Int8ImplicitGemmParams& params) {
  return ImplicitGemmWorkspaceBytes(WithoutEpilogue(params));  // sums of both types have 4 bytes
}

cudaError_t Int8ImplicitGemm(const Int8ImplicitGemmParams& params, cudaStream_t stream) {
  const NvtxRange range("Int8ImplicitGemm");
  if (!HasServedTypes(params) || CodeVersion() < kTensorCoreCode) return cudaErrorInvalidValue;
  ImplicitGemmParams chosen = WithoutEpilogue(params);
  if (params.shortcut_in.data != nullptr && !HasReadableShortcut(chosen)) return cudaErrorInvalidValue;
  if (params.tiles.out_capacity == 0) return cudaSuccess;
  const int64_t num_products = int64_t{params.tiles.num_offsets} * params.in.channels + params.shortcut_in.channels;
  if (num_products == 0 || num_products > kMaxInt8Products || !IsWithinLimits(chosen)) return cudaErrorInvalidValue;
  if (chosen.block.rows == 0) chosen.block = DefaultBlock(chosen);
  Int8Epilogue epilogue = params.epilogue;
  if (!IsInt8(params.out.dtype)) epilogue.inverse_scale = nullptr;
  const bool is_unsigned = params.in.dtype == DType::kUint8;
  if (chosen.block.uses_mma_sync) {
    return is_unsigned ? WarpImplicitGemmUint8(chosen, epilogue, stream)
                       : WarpImplicitGemmInt8(chosen, epilogue, stream);
  }
  if (!HasWarpGroups(params.in.dtype)) return cudaErrorInvalidValue;
  return is_unsigned ? WarpGroupImplicitGemmUint8(chosen, epilogue, stream)
                     : WarpGroupImplicitGemmInt8(chosen, epilogue, stream);
}

}  // namespace voxserve::kernels::cuda
