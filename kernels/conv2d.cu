#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/conv2d.cuh"
#include "kernels/conv2d.h"
#include "kernels/conv2d_phase.h"

namespace voxserve::kernels::cuda {
namespace {

// Weights of a group are padded to whole ones of the narrowest tile.
constexpr int32_t kNarrowestTile = 16;
// Stages of a block: as many as let two blocks, of narrow tiles four, share an SM of Hopper.
constexpr int kStagesOfWide = 3;    // 128 channels
constexpr int kStagesOfMiddle = 4;  // 64
constexpr int kStagesOfNarrow = 3;
constexpr int kStagesOfScalar = 2;
constexpr int kStagesOfWidest = 4;  // 256

constexpr int64_t kMaxGridAxis = 65535;  // of y and z

constexpr int32_t RoundUp(int32_t value, int32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

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

// How weights are packed: for each phase and group chunks of padded_out_channels rows, one an output channel, of
// kStageRowBytes: (cell, channel) of the phase's cells in order, the swizzle of a stage applied.
struct PackedWeights {
  int32_t vector_values;
  int32_t padded_in_channels;  // of a cell
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

struct DeviceTraits {
  int device = 0;
  int major = 0;
  int block_bytes = 0;  // shared memory that a block may have
};

cudaError_t ReadTraits(DeviceTraits& traits) {
  VOXSERVE_RETURN_IF_CUDA(cudaGetDevice(&traits.device));
  VOXSERVE_RETURN_IF_CUDA(cudaDeviceGetAttribute(&traits.major, cudaDevAttrComputeCapabilityMajor, traits.device));
  return cudaDeviceGetAttribute(&traits.block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, traits.device);
}

// Lets the kernel have its shared memory, once a device.
template <typename T, typename Product, int kStages>
cudaError_t AllowSharedMemory(int device) {
  static std::atomic<uint64_t> done = 0;  // bits of devices; setting it again does no harm
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (device < 64 && (done.load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
  const auto kernel = Conv2dKernel<T, Product, kStages>;
  VOXSERVE_RETURN_IF_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               Conv2dBlock<Product, kStages>::kSharedBytes));
  VOXSERVE_RETURN_IF_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  done.fetch_or(bit, std::memory_order_relaxed);
  return cudaSuccess;
}

template <typename T, typename Product, int kStages>
cudaError_t LaunchTiles(Conv2dArguments<T> arguments, const DeviceTraits& traits, cudaStream_t stream) {
  const cudaError_t allowed = AllowSharedMemory<T, Product, kStages>(traits.device);
  if (allowed != cudaSuccess) return allowed;
  int64_t num_positions = arguments.num_images;  // of the largest phase
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t out_size = axis == 0 ? arguments.out_rows : arguments.out_columns;
    num_positions *= (out_size - 1) / NumPhases(arguments.geometry, axis) + 1;
  }
  arguments.num_column_tiles = (arguments.group_out_channels - 1) / Product::kColumns + 1;
  const int64_t num_tiles = ((num_positions - 1) / kImageTileRows + 1) * arguments.num_column_tiles;
  if (num_tiles > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>(num_tiles), static_cast<unsigned>(arguments.geometry.groups),
                  static_cast<unsigned>(NumPhases(arguments.geometry, 0) * NumPhases(arguments.geometry, 1)));
  Conv2dKernel<T, Product, kStages>
      <<<grid, Product::kThreads, Conv2dBlock<Product, kStages>::kSharedBytes, stream>>>(arguments);
  return LaunchStatus(stream);
}

template <typename T>
cudaError_t LaunchScalars(const Conv2dArguments<T>& arguments, const DeviceTraits& traits, cudaStream_t stream) {
  if (arguments.group_out_channels <= 16) {
    return LaunchTiles<T, ScalarProducts<T, 16>, kStagesOfScalar>(arguments, traits, stream);
  }
  return LaunchTiles<T, ScalarProducts<T, 64>, kStagesOfScalar>(arguments, traits, stream);
}

// Whether the channels fill tiles of `columns` as well as tiles half as wide.
bool Fill(int32_t channels, int32_t columns) { return RoundUp(channels, columns) == RoundUp(channels, columns / 2); }

template <typename T>
cudaError_t LaunchWarps(const Conv2dArguments<T>& arguments, const DeviceTraits& traits, cudaStream_t stream) {
  const int32_t channels = arguments.group_out_channels;
  if (channels <= 16) return LaunchTiles<T, WarpProducts<T, 16>, kStagesOfNarrow>(arguments, traits, stream);
  if (channels <= 32) return LaunchTiles<T, WarpProducts<T, 32>, kStagesOfNarrow>(arguments, traits, stream);
  using Wide = WarpProducts<T, 128>;
  constexpr int kTableBytes = kImageTileRows * int{sizeof(TilePosition)} + kCellTableSize * int{sizeof(int64_t)};
  if (Fill(channels, 128) && Conv2dBlock<Wide, kStagesOfWide>::kSharedBytes + kTableBytes <= traits.block_bytes) {
    return LaunchTiles<T, Wide, kStagesOfWide>(arguments, traits, stream);
  }
  return LaunchTiles<T, WarpProducts<T, 64>, kStagesOfWide>(arguments, traits, stream);
}

// How a tile is computed follows from the GPU, the types and the channels alone, so that a position's sums are added in
// one order whatever it is batched with.
template <typename T>
cudaError_t Launch(const Conv2dArguments<T>& arguments, const Conv2dParams& params, const DeviceTraits& traits,
                   cudaStream_t stream) {
  const bool is_scalar = traits.major < 8 || (std::is_same_v<T, float> && !params.allow_tf32);
  const bool has_groups = traits.major == 9 && !std::is_same_v<T, float>;
  Conv2dTiling tiling = params.tiling;
  if (tiling == Conv2dTiling::kChosen) {
    const bool is_narrow = arguments.group_out_channels <= 32;
    tiling = has_groups && !is_narrow ? Conv2dTiling::kWarpGroups : Conv2dTiling::kWarps;
  }
  if (tiling == Conv2dTiling::kWarps) {
    return is_scalar ? LaunchScalars(arguments, traits, stream) : LaunchWarps(arguments, traits, stream);
  }
  if constexpr (!std::is_same_v<T, float>) {
    if (has_groups && tiling == Conv2dTiling::kWideWarpGroups) {
      return LaunchTiles<T, WarpGroupProducts<T, 256, 1>, kStagesOfWidest>(arguments, traits, stream);
    }
    if (has_groups && Fill(arguments.group_out_channels, 128)) {
      return LaunchTiles<T, WarpGroupProducts<T, 128, 0>, kStagesOfWide>(arguments, traits, stream);
    }
    if (has_groups) return LaunchTiles<T, WarpGroupProducts<T, 64, 1>, kStagesOfMiddle>(arguments, traits, stream);
  }
  return cudaErrorInvalidValue;
}

template <typename T>
Conv2dArguments<T> ArgumentsOf(const Conv2dParams& params, int32_t out_rows, int32_t out_columns) {
  const Conv2dGeometry& geometry = params.geometry;
  const PackedWeights packed(geometry, params.in_channels, params.out_channels, params.dtype);
  const int32_t group_in_channels = params.in_channels / geometry.groups;
  const int32_t group_out_channels = params.out_channels / geometry.groups;
  constexpr auto kValueBytes = static_cast<int64_t>(sizeof(T));
  CommonAlignment in_alignment;
  in_alignment.Add(params.in).Add(params.in_pitch * kValueBytes);
  if (geometry.groups > 1) in_alignment.Add(group_in_channels * kValueBytes);
  CommonAlignment out_alignment;
  out_alignment.Add(params.out).Add(params.out_pitch * SizeOf(params.out_dtype)).Add(group_out_channels * kValueBytes);
  AddEpilogue(params.epilogue, params.dtype, out_alignment);
  return {.geometry = geometry,
          .num_images = params.num_images,
          .in_rows = params.in_rows,
          .in_columns = params.in_columns,
          .out_rows = out_rows,
          .out_columns = out_columns,
          .in = static_cast<const T*>(params.in),
          .in_pitch = params.in_pitch,
          .group_in_channels = group_in_channels,
          .padded_in_channels = packed.padded_in_channels,
          .in_vectors = in_alignment.bytes() == kVectorBytes,
          .weights = static_cast<const unsigned char*>(params.weights),
          .num_chunks = packed.num_chunks,
          .group_out_channels = group_out_channels,
          .padded_out_channels = packed.padded_out_channels,
          .num_column_tiles = 0,  // LaunchTiles knows
          .out = params.out,
          .out_pitch = params.out_pitch,
          .is_out_float = params.out_dtype == DType::kFloat32,
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
      for (int32_t o = 0; o < group_out; ++o) {
        for (int32_t i = 0; i < group_in; ++i) {
          // Where the matrix of kernel cells of these channels begins.
          const int64_t matrix =
              geometry.is_transposed ? int64_t{i} * out_channels + o : (int64_t{group} * group_out + o) * group_in + i;
          const float* const from = weights + matrix * row_cells * column_cells;
          for (int32_t cell = 0; cell < rows.num_cells * columns.num_cells; ++cell) {
            const int32_t row = rows.first_cell + cell / columns.num_cells * rows.cell_step;
            const int32_t column = columns.first_cell + cell % columns.num_cells * columns.cell_step;
            const int32_t k = cell * packed.padded_in_channels + i;
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
  if (!IsServed(geometry, params.in_channels, params.out_channels)) return cudaErrorInvalidValue;
  if (params.out_dtype != params.dtype && params.out_dtype != DType::kFloat32) return cudaErrorInvalidValue;
  const int64_t out_rows = geometry.OutSize(0, params.in_rows);
  const int64_t out_columns = geometry.OutSize(1, params.in_columns);
  if (params.num_images <= 0 || out_rows <= 0 || out_columns <= 0 || params.out_channels == 0) return cudaSuccess;
  if (out_rows > std::numeric_limits<int32_t>::max() || out_columns > std::numeric_limits<int32_t>::max()) {
    return cudaErrorInvalidValue;
  }
  const NvtxRange range("Conv2d");
  DeviceTraits traits;
  VOXSERVE_RETURN_IF_CUDA(ReadTraits(traits));
  return VisitFeatureType(params.dtype, [&](auto value) {
    const auto arguments =
        ArgumentsOf<decltype(value)>(params, static_cast<int32_t>(out_rows), static_cast<int32_t>(out_columns));
    return Launch(arguments, params, traits, stream);
  });
}

}  // namespace voxserve::kernels::cuda
