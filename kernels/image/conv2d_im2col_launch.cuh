#pragma once

// This header describes a convolution's inputs to Hopper's tensor copies, launches the kernel of
// conv2d_im2col_kernel.cuh, and has the cost model by which the tile is chosen. Only .cu files include it.

#include <cudaTypedefs.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/core/tensor_map.cuh"
#include "kernels/image/conv2d_im2col_kernel.cuh"
#include "kernels/image/conv2d_im2col_limits.h"
#include "kernels/image/conv2d_launch.cuh"
#include "kernels/image/conv2d_tile_choice.cuh"

namespace voxserve::kernels::cuda {

template <typename Shape>
inline constexpr CUtensorMapSwizzle kInputSwizzle =
    Shape::kRowBytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;

// Fills the map of a phase. Returns false if the driver refuses it.
template <typename Shape, typename T>
bool FillIm2colMap(const Conv2dArguments<T>& arguments, int32_t phase, CUtensorMap& map) {
  static const auto encode = FindMapFunction<PFN_cuTensorMapEncodeIm2col_v12000>("cuTensorMapEncodeIm2col");
  if (encode == nullptr) return false;
  const int32_t column_phases = NumPhases(arguments.geometry, 1);
  const Conv2dPhase rows = PhaseOf(arguments.geometry, 0, arguments.in_rows, phase / column_phases);
  const Conv2dPhase columns = PhaseOf(arguments.geometry, 1, arguments.in_columns, phase % column_phases);
  const Im2colBox row_box = Im2colBoxOf(rows, arguments.in_rows),
                  column_box = Im2colBoxOf(columns, arguments.in_columns);
  const cuuint64_t channels = static_cast<cuuint64_t>(arguments.group_in_channels) * arguments.geometry.groups;
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(arguments.in_pitch) * sizeof(T);
  const auto width = static_cast<cuuint64_t>(arguments.in_columns), height = static_cast<cuuint64_t>(arguments.in_rows);
  // Sizes go from the innermost axis outwards: channels, columns, rows, images. Boxes: columns, rows.
  const cuuint64_t sizes[] = {channels, width, height, static_cast<cuuint64_t>(arguments.num_images)};
  const cuuint64_t strides[] = {row_bytes, row_bytes * width, row_bytes * width * height};
  const int lower[] = {static_cast<int>(column_box.lower), static_cast<int>(row_box.lower)};
  const int upper[] = {static_cast<int>(column_box.upper), static_cast<int>(row_box.upper)};
  const cuuint32_t steps[] = {1, static_cast<cuuint32_t>(columns.in_step), static_cast<cuuint32_t>(rows.in_step), 1};
  return encode(&map, kTensorMapType<T>, 4, const_cast<T*>(arguments.in), sizes, strides, lower, upper,
                kIm2colChannels<T, Shape>, static_cast<cuuint32_t>(Shape::kPositions), steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, kInputSwizzle<Shape>, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Returns cudaErrorNotSupported without launching if the driver refuses the tensor copies.
template <typename Shape, typename T>
cudaError_t LaunchIm2colShape(const Conv2dArguments<T>& conv, const Im2colOutputs<T>& outputs,
                              const DeviceTraits& traits, cudaStream_t stream) {
  static std::atomic<uint64_t> allowed = 0;
  const auto kernel = Im2colKernel<T, Shape>;
  VOXSERVE_RETURN_IF_CUDA(AllowSharedMemory(kernel, Shape::kSharedBytes, traits.device, allowed));
  Im2colArguments<T> arguments{.inputs = {}, .conv = conv, .num_tiles = 0, .num_position_tiles = 0, .outputs = outputs};
  const int32_t num_phases = NumPhases(conv.geometry);
  for (int32_t phase = 0; phase < num_phases; ++phase) {
    if (!FillIm2colMap<Shape>(conv, phase, arguments.inputs[phase])) return cudaErrorNotSupported;
  }
  arguments.conv.num_column_tiles = (conv.group_out_channels - 1) / Shape::kChannels + 1;
  arguments.num_position_tiles = static_cast<int32_t>((NumPositions(conv) - 1) / Shape::kPositions + 1);
  const int64_t num_tiles =
      int64_t{arguments.num_position_tiles} * arguments.conv.num_column_tiles * conv.geometry.groups * num_phases;
  // The kernel counts tiles in 32 bits, beyond the last one too.
  const int64_t num_blocks = std::min<int64_t>(num_tiles, traits.num_sms);
  if (num_tiles + num_blocks > std::numeric_limits<int32_t>::max()) return cudaErrorNotSupported;
  arguments.num_tiles = static_cast<int32_t>(num_tiles);
  return LaunchEarly(kernel, dim3(static_cast<unsigned>(num_blocks)), Shape::kThreads, Shape::kSharedBytes, stream,
                     arguments);
}

// Launches a tiling with positions as rows, for tiles of 64 or of 128 channels. Shape<warp groups, channels, stages of
// 128 bytes a row>.
template <template <int, int, int> typename Shape, typename T>
cudaError_t LaunchPositionRows(const Conv2dArguments<T>& conv, const Im2colOutputs<T>& outputs, Conv2dTiling tiling,
                               const DeviceTraits& traits, cudaStream_t stream) {
  const bool is_narrow = !Fill(conv.group_out_channels, 128);
  switch (tiling) {
    case Conv2dTiling::kTwoIm2col:
      return is_narrow ? LaunchIm2colShape<Shape<2, 64, 8>>(conv, outputs, traits, stream)
                       : LaunchIm2colShape<Shape<2, 128, 6>>(conv, outputs, traits, stream);
    case Conv2dTiling::kThreeIm2col:
      return is_narrow ? LaunchIm2colShape<Shape<3, 64, 6>>(conv, outputs, traits, stream)
                       : LaunchIm2colShape<Shape<3, 128, 5>>(conv, outputs, traits, stream);
    case Conv2dTiling::kFourIm2col:
      return is_narrow ? LaunchIm2colShape<Shape<4, 64, 5>>(conv, outputs, traits, stream)
                       : LaunchIm2colShape<Shape<4, 128, 4>>(conv, outputs, traits, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

// Returns true if the kernel's counts of positions, up to the end of the last tile, fit 32 bits.
template <typename T>
bool HasCountablePositions(const Conv2dArguments<T>& arguments) {
  constexpr int64_t kMaxTileRows = 512;
  return NumPositions(arguments) <= std::numeric_limits<int32_t>::max() - kMaxTileRows;
}

// A cost model, in cycles of an SM, fitted to the times of conv2d_cuda_bench on an H200 in float16
// (tests/bench/results/CURRENT.md: images). A tile takes its start, its chunks and the storing of its sums. A chunk
// takes as long as its products or as its bytes, whichever is longer. In 8 bits a chunk of as many bytes has twice the
// products, at twice the rate.
struct TileCost {
  int64_t products_a_cycle;  // in 16 bits
  int64_t sums_a_cycle;
  int64_t bytes_a_cycle;
  int64_t start_cycles;
};

// The sizes of a tile, of which a chunk has row_bytes of each row and column.
struct TileSizes {
  int64_t rows;
  int64_t copied_rows;  // in the mean, to multiply `rows` of them
  int64_t columns;
  int64_t row_bytes;
};

inline int64_t TilesCycles(const TileCost& cost, const TileSizes& sizes, int64_t num_chunks, int64_t num_tiles,
                           const DeviceTraits& traits) {
  constexpr int64_t kProductBytes = 2;
  const int64_t products = sizes.rows * sizes.columns * (sizes.row_bytes / kProductBytes);
  const int64_t chunk = std::max(products / cost.products_a_cycle,
                                 (sizes.copied_rows + sizes.columns) * sizes.row_bytes / cost.bytes_a_cycle);
  const int64_t tile = cost.start_cycles + num_chunks * chunk + sizes.rows * sizes.columns / cost.sums_a_cycle;
  return ((num_tiles - 1) / traits.num_sms + 1) * tile;
}

}  // namespace voxserve::kernels::cuda
