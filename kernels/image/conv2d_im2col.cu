#include <cudaTypedefs.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/image/conv2d_im2col.cuh"
#include "kernels/image/conv2d_im2col_kernel.cuh"
#include "kernels/image/conv2d_tile_choice.cuh"

namespace voxserve::kernels::cuda {
namespace {

using EncodeIm2col = PFN_cuTensorMapEncodeIm2col_v12000;

// Returns the driver's function, which the program does not link; null if the driver has none.
EncodeIm2col FindEncodeIm2col() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned int kSince = 12000;  // the CUDA version of this function
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeIm2col", &function, kSince, cudaEnableDefault, &found) !=
      cudaSuccess) {
    cudaGetLastError();  // so that the next launch does not report this error
    return nullptr;
  }
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeIm2col>(function) : nullptr;
}

// The box of an axis in which the first cells of all positions lie, as distances from the image's ends.
struct Box {
  int64_t lower;
  int64_t upper;
};
Box BoxOf(const Conv2dPhase& phase, int32_t in_size) {
  return {phase.in_begin, phase.in_begin + int64_t{phase.num_outputs - 1} * phase.in_step - (in_size - 1)};
}

// Returns true if tensor copies can walk along the axis (CUDA driver API, cuTensorMapEncodeIm2col; PTX,
// cp.async.bulk.tensor: offsets of 4-D maps have 8 bits).
bool IsWithinLimits(const Conv2dPhase& phase, int32_t in_size) {
  if (in_size < 1 || phase.num_outputs < 1 || phase.num_cells < 1) return false;
  const Box box = BoxOf(phase, in_size);
  return box.lower >= -128 && box.lower <= 127 && box.upper >= -128 && box.upper <= 127 && phase.in_step <= 8 &&
         int64_t{phase.num_cells - 1} * phase.cell_reach <= 255;
}

int32_t NumPhases(const Conv2dGeometry& geometry) { return NumPhases(geometry, 0) * NumPhases(geometry, 1); }

// Fills the map of a phase. positions: how many a copy moves. Returns false if the driver refuses it.
template <typename T>
bool Encode(const Conv2dArguments<T>& arguments, int32_t phase, int positions, CUtensorMap& map) {
  static const EncodeIm2col encode = FindEncodeIm2col();
  if (encode == nullptr) return false;
  const int32_t column_phases = NumPhases(arguments.geometry, 1);
  const Conv2dPhase rows = PhaseOf(arguments.geometry, 0, arguments.in_rows, phase / column_phases);
  const Conv2dPhase columns = PhaseOf(arguments.geometry, 1, arguments.in_columns, phase % column_phases);
  const Box row_box = BoxOf(rows, arguments.in_rows), column_box = BoxOf(columns, arguments.in_columns);
  const cuuint64_t channels = static_cast<cuuint64_t>(arguments.group_in_channels) * arguments.geometry.groups;
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(arguments.in_pitch) * sizeof(T);
  const auto width = static_cast<cuuint64_t>(arguments.in_columns), height = static_cast<cuuint64_t>(arguments.in_rows);
  // Sizes go from the innermost axis outwards: channels, columns, rows, images. Boxes: columns, rows.
  const cuuint64_t sizes[] = {channels, width, height, static_cast<cuuint64_t>(arguments.num_images)};
  const cuuint64_t strides[] = {row_bytes, row_bytes * width, row_bytes * width * height};
  const int lower[] = {static_cast<int>(column_box.lower), static_cast<int>(row_box.lower)};
  const int upper[] = {static_cast<int>(column_box.upper), static_cast<int>(row_box.upper)};
  const cuuint32_t steps[] = {1, static_cast<cuuint32_t>(columns.in_step), static_cast<cuuint32_t>(rows.in_step), 1};
  constexpr CUtensorMapDataType kType =
      std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return encode(&map, kType, 4, const_cast<T*>(arguments.in), sizes, strides, lower, upper, kIm2colChannels,
                static_cast<cuuint32_t>(positions), steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename Shape, typename T>
cudaError_t LaunchShape(const Conv2dArguments<T>& conv, const DeviceTraits& traits, cudaStream_t stream) {
  static std::atomic<uint64_t> allowed = 0;
  const auto kernel = Im2colKernel<T, Shape>;
  VOXSERVE_RETURN_IF_CUDA(AllowSharedMemory(kernel, Shape::kSharedBytes, traits.device, allowed));
  Im2colArguments<T> arguments{.inputs = {}, .conv = conv, .num_tiles = 0, .num_position_tiles = 0};
  const int32_t num_phases = NumPhases(conv.geometry);
  for (int32_t phase = 0; phase < num_phases; ++phase) {
    if (!Encode(conv, phase, Shape::kPositions, arguments.inputs[phase])) return cudaErrorNotSupported;
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

// The tilings with positions as rows, for tiles of 64 and of 128 channels.
template <int kChannels>
using TwoGroups = PositionRowsShape<2, kChannels, kChannels == 64 ? 8 : 6>;
template <int kChannels>
using ThreeGroups = PositionRowsShape<3, kChannels, kChannels == 64 ? 6 : 5>;
template <int kChannels>
using FourGroups = PositionRowsShape<4, kChannels, kChannels == 64 ? 5 : 4>;

constexpr TileShape kTileShapes[] = {
    {Conv2dTiling::kTwoIm2col, 128, 0, 1},      {Conv2dTiling::kThreeIm2col, 192, 0, 1},
    {Conv2dTiling::kFourIm2col, 256, 0, 1},     {Conv2dTiling::kIm2col128By136, 136, 128, 1},
    {Conv2dTiling::kIm2col64By272, 272, 64, 1},
};

// A cost model, in cycles of an SM, fitted to the times of conv2d_cuda_bench on an H200
// (tests/bench/results/CURRENT.md: images). A tile takes its start, its chunks and the storing of its sums. A chunk
// takes as long as its products or as its bytes, whichever is longer.
struct TileCost {
  int64_t products_a_cycle;
  int64_t sums_a_cycle;
};
constexpr TileCost kPositionRowsCost{.products_a_cycle = 1900, .sums_a_cycle = 8};
constexpr TileCost kChannelRowsCost{.products_a_cycle = 1300, .sums_a_cycle = 6};
constexpr int64_t kBytesACycle = 48;
constexpr int64_t kStartCycles = 300;

}  // namespace

template <typename T>
bool IsForIm2col(const Conv2dArguments<T>& arguments) {
  const Conv2dGeometry& geometry = arguments.geometry;
  if (!arguments.in_vectors || !arguments.out_vectors || arguments.group_in_channels % kIm2colChannels != 0 ||
      NumPhases(geometry) > kMaxIm2colPhases) {
    return false;
  }
  for (size_t axis = 0; axis < 2; ++axis) {
    const int32_t in_size = axis == 0 ? arguments.in_rows : arguments.in_columns;
    for (int32_t phase = 0; phase < NumPhases(geometry, axis); ++phase) {
      if (!IsWithinLimits(PhaseOf(geometry, axis, in_size, phase), in_size)) return false;
    }
  }
  // Positions are counted in 32 bits, up to the end of the last tile.
  constexpr int64_t kMaxTileRows = 512;
  return NumPositions(arguments) <= std::numeric_limits<int32_t>::max() - kMaxTileRows;
}

template <typename T>
Conv2dTiling ChooseIm2col(const Conv2dArguments<T>& arguments, const DeviceTraits& traits) {
  const int64_t cells = int64_t{MaxPhaseCells(arguments.geometry, 0)} * MaxPhaseCells(arguments.geometry, 1);
  const int64_t num_chunks = cells * arguments.group_in_channels / kIm2colChannels;
  return CheapestTiling(kTileShapes, arguments, [&](const TileShape& shape, int64_t columns, int64_t num_tiles) {
    const bool has_channel_rows =
        shape.tiling == Conv2dTiling::kIm2col128By136 || shape.tiling == Conv2dTiling::kIm2col64By272;
    const TileCost& cost = has_channel_rows ? kChannelRowsCost : kPositionRowsCost;
    const int64_t chunk = std::max(shape.rows * columns * kIm2colChannels / cost.products_a_cycle,
                                   (shape.rows + columns) * kStageRowBytes / kBytesACycle);
    const int64_t tile = kStartCycles + num_chunks * chunk + shape.rows * columns / cost.sums_a_cycle;
    return ((num_tiles - 1) / traits.num_sms + 1) * tile;
  });
}

template <typename T>
cudaError_t LaunchIm2col(const Conv2dArguments<T>& arguments, Conv2dTiling tiling, const DeviceTraits& traits,
                         cudaStream_t stream) {
  const bool is_narrow = !Fill(arguments.group_out_channels, 128);
  switch (tiling) {
    case Conv2dTiling::kTwoIm2col:
      return is_narrow ? LaunchShape<TwoGroups<64>>(arguments, traits, stream)
                       : LaunchShape<TwoGroups<128>>(arguments, traits, stream);
    case Conv2dTiling::kThreeIm2col:
      return is_narrow ? LaunchShape<ThreeGroups<64>>(arguments, traits, stream)
                       : LaunchShape<ThreeGroups<128>>(arguments, traits, stream);
    case Conv2dTiling::kFourIm2col:
      return is_narrow ? LaunchShape<FourGroups<64>>(arguments, traits, stream)
                       : LaunchShape<FourGroups<128>>(arguments, traits, stream);
    case Conv2dTiling::kIm2col128By136:
      return LaunchShape<ChannelRowsShape<128, 136, 6>>(arguments, traits, stream);
    case Conv2dTiling::kIm2col64By272:
      return LaunchShape<ChannelRowsShape<64, 272, 5>>(arguments, traits, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

template bool IsForIm2col(const Conv2dArguments<__half>&);
template bool IsForIm2col(const Conv2dArguments<__nv_bfloat16>&);
template Conv2dTiling ChooseIm2col(const Conv2dArguments<__half>&, const DeviceTraits&);
template Conv2dTiling ChooseIm2col(const Conv2dArguments<__nv_bfloat16>&, const DeviceTraits&);
template cudaError_t LaunchIm2col(const Conv2dArguments<__half>&, Conv2dTiling, const DeviceTraits&, cudaStream_t);
template cudaError_t LaunchIm2col(const Conv2dArguments<__nv_bfloat16>&, Conv2dTiling, const DeviceTraits&,
                                  cudaStream_t);

}  // namespace voxserve::kernels::cuda
