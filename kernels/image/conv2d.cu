#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/core/device_code.h"
#include "kernels/image/conv2d.cuh"
#include "kernels/image/conv2d.h"
#include "kernels/image/conv2d_few_outputs.cuh"
#include "kernels/image/conv2d_im2col.cuh"
#include "kernels/image/conv2d_launch.cuh"
#include "kernels/image/conv2d_listed_boxes.cuh"
#include "kernels/image/conv2d_phase.h"
#include "kernels/image/conv2d_summed_axis.h"
#include "kernels/image/conv2d_warp_groups.cuh"

namespace voxserve::kernels::cuda {
namespace {

// The weights of a group are padded to a multiple of the narrowest tile.
constexpr int32_t kNarrowestTile = 16;
// Stages of a block: as many as let two blocks (four with narrow tiles) share an SM of Hopper.
constexpr int kStagesOfWarps = 3;
constexpr int kStagesOfScalar = 2;

bool IsServed(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels) {
  for (size_t axis = 0; axis < 2; ++axis) {
    if (geometry.kernel_size[axis] < 1 || geometry.kernel_size[axis] > kMaxConv2dKernelSize ||
        geometry.stride[axis] < 1 || geometry.padding[axis] < 0 || geometry.dilation[axis] < 1) {
      return false;
    }
    if (geometry.is_transposed && (geometry.dilation[axis] != 1 || geometry.output_padding[axis] < 0 ||
                                   geometry.output_padding[axis] >= geometry.stride[axis])) {
      return false;
    }
    if (!geometry.is_transposed && geometry.output_padding[axis] != 0) return false;
  }
  return geometry.groups >= 1 && geometry.groups <= kMaxGridAxis && in_channels >= 1 && out_channels >= 0 &&
         in_channels % geometry.groups == 0 && out_channels % geometry.groups == 0 &&
         (!geometry.is_transposed || geometry.groups == 1) &&
         int64_t{NumPhases(geometry, 0)} * NumPhases(geometry, 1) <= kMaxGridAxis;
}

// The layout of packed weights: for each phase and group, chunks of padded_out_channels rows. A row belongs to one
// output channel and has kStageRowBytes: (cell, channel) pairs in the order of Conv2dSummedAxis, swizzled like a stage.
struct PackedWeights {
  int32_t vector_values;
  int32_t padded_in_channels;  // per cell
  int32_t padded_out_channels;
  int32_t num_chunks;

  PackedWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels, DType dtype)
      : vector_values(static_cast<int32_t>(16 / SizeOf(dtype))),
        padded_in_channels(RoundUp(in_channels / geometry.groups, vector_values)),
        padded_out_channels(RoundUp(out_channels / geometry.groups, kNarrowestTile)),
        num_chunks((MaxPhaseCells(geometry, 0) * MaxPhaseCells(geometry, 1) * padded_in_channels - 1) /
                       (kVectorsARow * vector_values) +
                   1) {}

  int64_t SlotValues() const { return int64_t{num_chunks} * padded_out_channels * kVectorsARow * vector_values; }
};

template <typename T>
cudaError_t LaunchScalars(const Conv2dArguments<T>& arguments, const DeviceTraits& traits, cudaStream_t stream) {
  if (arguments.group_out_channels <= 16) {
    return LaunchTiles<T, ScalarProducts<T, 16>, kStagesOfScalar>(arguments, traits, stream);
  }
  return LaunchTiles<T, ScalarProducts<T, 64>, kStagesOfScalar>(arguments, traits, stream);
}

template <typename T>
cudaError_t LaunchWarps(const Conv2dArguments<T>& arguments, const DeviceTraits& traits, cudaStream_t stream) {
  const int32_t channels = arguments.group_out_channels;
  if (channels <= 16) return LaunchTiles<T, WarpProducts<T, 16>, kStagesOfWarps>(arguments, traits, stream);
  if (channels <= 32) return LaunchTiles<T, WarpProducts<T, 32>, kStagesOfWarps>(arguments, traits, stream);
  using Wide = WarpProducts<T, 128>;
  using WideBlock = Conv2dBlock<Wide, kStagesOfWarps>;
  if (Fill(channels, 128) && WideBlock::kSharedBytes + WideBlock::kTableBytes <= traits.block_bytes) {
    return LaunchTiles<T, Wide, kStagesOfWarps>(arguments, traits, stream);
  }
  return LaunchTiles<T, WarpProducts<T, 64>, kStagesOfWarps>(arguments, traits, stream);
}

// Chooses how to multiply: by scalars, warps, warp groups, or squares of few outputs. The choice depends only on the
// GPU, the types, the channels and the geometry. Among warp groups, the tiling also depends on the number of positions,
// and so on num_images, and the way to copy inputs depends on the alignment of their rows. But all these tilings add up
// a position's products in the same order, chunk after chunk, 16 at a time
// (Conv2dCudaTest.TilingsOfWarpGroupsAddUpInOneOrder, Conv2dIm2colTest). The way to copy squares depends on the
// alignment too, and does not change their sums (Conv2dCudaTest.FewOutputsHaveTheSameBytesForEveryAlignment). So a
// sample's result has the same bits in every batch.
template <typename T>
cudaError_t Launch(const Conv2dArguments<T>& arguments, const Conv2dParams& params, const DeviceTraits& traits,
                   cudaStream_t stream) {
  const bool is_scalar = traits.code_version < kTensorCoreCode || (std::is_same_v<T, float> && !params.allow_tf32);
  const bool has_groups = traits.code_version == kWarpGroupCode && !std::is_same_v<T, float>;
  const bool is_few = !is_scalar && IsForFewOutputs(arguments);
  Conv2dTiling tiling = params.tiling;
  if (tiling == Conv2dTiling::kChosen) {
    tiling = Conv2dTiling::kWarps;
    if (is_few) {
      tiling = Conv2dTiling::kFewOutputs;
    } else if (has_groups && arguments.group_out_channels > 32) {
      if constexpr (!std::is_same_v<T, float>) {
        if (IsForIm2col(arguments)) {
          if (params.active.box.rows > 0) {
            const cudaError_t status = LaunchListedBoxes(arguments, params.active, traits, stream);
            if (status != cudaErrorNotSupported) return status;
          }
          const cudaError_t status = LaunchIm2col(arguments, ChooseIm2col(arguments, traits), traits, stream);
          if (status != cudaErrorNotSupported) return status;
        }
      }
      tiling = ChooseWarpGroups(arguments, traits);
    }
  }
  switch (tiling) {
    case Conv2dTiling::kChosen:
      break;
    case Conv2dTiling::kWarps:
      return is_scalar ? LaunchScalars(arguments, traits, stream) : LaunchWarps(arguments, traits, stream);
    case Conv2dTiling::kFewOutputs:
      return is_few ? LaunchFewOutputs(arguments, traits, stream) : cudaErrorInvalidValue;
    case Conv2dTiling::kTwoWarpGroups:
    case Conv2dTiling::kThreeWarpGroups:
    case Conv2dTiling::kFourWarpGroups:
    case Conv2dTiling::kFiveWarpGroups:
    case Conv2dTiling::kWideWarpGroups:
      if constexpr (!std::is_same_v<T, float>) {
        if (has_groups) return LaunchWarpGroups(arguments, tiling, traits, stream);
      }
      break;
    case Conv2dTiling::kTwoIm2col:
    case Conv2dTiling::kThreeIm2col:
    case Conv2dTiling::kFourIm2col:
    case Conv2dTiling::kIm2col128By136:
    case Conv2dTiling::kIm2col64By272:
    case Conv2dTiling::kThreeBoxes:
    case Conv2dTiling::kFourBoxes:
    case Conv2dTiling::kBoxes128By144:
    case Conv2dTiling::kBoxes64By288:
      if constexpr (!std::is_same_v<T, float>) {
        if (has_groups && IsForIm2col(arguments)) return LaunchIm2col(arguments, tiling, traits, stream);
      }
      break;
  }
  return cudaErrorInvalidValue;
}

template <typename T>
Conv2dArguments<T> ArgumentsOf(const Conv2dParams& params, int32_t out_rows, int32_t out_columns) {
  const Conv2dGeometry& geometry = params.geometry;
  const PackedWeights packed(geometry, params.in.channels, params.out.channels, params.in.dtype);
  const int32_t group_in_channels = params.in.channels / geometry.groups;
  const int32_t group_out_channels = params.out.channels / geometry.groups;
  constexpr auto kValueBytes = static_cast<int64_t>(sizeof(T));
  CommonAlignment in_alignment;
  in_alignment.Add(params.in);
  if (geometry.groups > 1) in_alignment.Add(group_in_channels * kValueBytes);
  CommonAlignment out_alignment;
  out_alignment.Add(params.out).Add(group_out_channels * kValueBytes);
  AddEpilogue(params.epilogue, out_alignment);
  return {.geometry = geometry,
          .num_images = params.num_images,
          .in_rows = params.in_rows,
          .in_columns = params.in_columns,
          .out_rows = out_rows,
          .out_columns = out_columns,
          .in = static_cast<const T*>(params.in.data),
          .in_pitch = params.in.pitch,
          .group_in_channels = group_in_channels,
          .padded_in_channels = packed.padded_in_channels,
          .in_vectors = in_alignment.bytes() == kVectorBytes,
          .weights = static_cast<const unsigned char*>(params.weights),
          .num_chunks = packed.num_chunks,
          .group_out_channels = group_out_channels,
          .padded_out_channels = packed.padded_out_channels,
          .num_column_tiles = 0,  // LaunchTiles sets it
          .out = params.out.data,
          .out_pitch = params.out.pitch,
          .is_out_float = params.out.dtype == DType::kFloat32,
          .out_vectors = out_alignment.bytes() == kVectorBytes,
          .epilogue = TypedEpilogue<T, float>(params.epilogue)};
}

}  // namespace

std::vector<float> PackConv2dWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                     DType dtype, const float* weights) {
  const PackedWeights packed(geometry, in_channels, out_channels, dtype);
  const int32_t num_row_phases = NumPhases(geometry, 0), num_column_phases = NumPhases(geometry, 1);
  const int32_t row_cells = geometry.kernel_size[0], column_cells = geometry.kernel_size[1];
  const int32_t group_in = in_channels / geometry.groups, group_out = out_channels / geometry.groups;
  const int32_t chunk_values = kVectorsARow * packed.vector_values;
  std::vector<float> to(static_cast<size_t>(packed.SlotValues() * geometry.groups * num_row_phases * num_column_phases),
                        0.0f);
  float* slot = to.data();
  for (int32_t phase = 0; phase < num_row_phases * num_column_phases; ++phase) {
    const Conv2dPhase rows = PhaseOf(geometry, 0, 1, phase / num_column_phases);
    const Conv2dPhase columns = PhaseOf(geometry, 1, 1, phase % num_column_phases);
    for (int32_t group = 0; group < geometry.groups; ++group, slot += packed.SlotValues()) {
      const Conv2dSummedAxis axis = {.num_cell_rows = rows.num_cells,
                                     .num_cell_columns = columns.num_cells,
                                     .cell_channels = packed.padded_in_channels,
                                     .chunk_channels = chunk_values};
      for (int32_t o = 0; o < group_out; ++o) {
        for (int32_t i = 0; i < group_in; ++i) {
          // The first value of the matrix of kernel cells for these channels.
          const int64_t matrix =
              geometry.is_transposed ? int64_t{i} * out_channels + o : (int64_t{group} * group_out + o) * group_in + i;
          const float* const from = weights + matrix * row_cells * column_cells;
          for (int32_t cell = 0; cell < rows.num_cells * columns.num_cells; ++cell) {
            const int32_t cell_row = cell / columns.num_cells, cell_column = cell % columns.num_cells;
            const int32_t row = rows.first_cell + cell_row * rows.cell_step;
            const int32_t column = columns.first_cell + cell_column * columns.cell_step;
            const int32_t k = axis.PlaceOf(cell_row, cell_column, i);
            const int32_t chunk = k / chunk_values, in_chunk = k % chunk_values;
            const int32_t vector = in_chunk / packed.vector_values;
            const int64_t at = (int64_t{chunk} * packed.padded_out_channels + o) * chunk_values +
                               (vector ^ (o % 8)) * packed.vector_values + in_chunk % packed.vector_values;
            slot[at] = from[row * column_cells + column];
          }
        }
      }
    }
  }
  return to;
}

cudaError_t Conv2d(const Conv2dParams& params, cudaStream_t stream) {
  const Conv2dGeometry& geometry = params.geometry;
  if (!IsServed(geometry, params.in.channels, params.out.channels)) return cudaErrorInvalidValue;
  if (params.out.dtype != params.in.dtype && params.out.dtype != DType::kFloat32) return cudaErrorInvalidValue;
  const int64_t out_rows = geometry.OutSize(0, params.in_rows);
  const int64_t out_columns = geometry.OutSize(1, params.in_columns);
  if (params.num_images <= 0 || out_rows <= 0 || out_columns <= 0 || params.out.channels == 0) return cudaSuccess;
  if (out_rows > std::numeric_limits<int32_t>::max() || out_columns > std::numeric_limits<int32_t>::max()) {
    return cudaErrorInvalidValue;
  }
  const NvtxRange range("Conv2d");
  DeviceTraits traits;
  VOXSERVE_RETURN_IF_CUDA(ReadTraits(traits));
  return VisitFeatureType(params.in.dtype, [&](auto value) {
    const auto arguments =
        ArgumentsOf<decltype(value)>(params, static_cast<int32_t>(out_rows), static_cast<int32_t>(out_columns));
    return Launch(arguments, params, traits, stream);
  });
}

}  // namespace voxserve::kernels::cuda
