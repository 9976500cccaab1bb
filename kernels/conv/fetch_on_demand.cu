#include <algorithm>
#include <array>
#include <atomic>
#include <limits>

#include "kernels/conv/fetch_on_demand.cuh"
#include "kernels/conv/fetch_on_demand.h"
#include "kernels/conv/gather_scatter.h"

namespace voxserve::kernels::cuda {
namespace {

constexpr std::array<int32_t, 8> kTileRows = {32, 64, 96, 128, 192, 256, 384, 512};
static_assert(kTileRows.back() <= kMaxTileRows);
// Entries of the lists for each row of a tile: LiDAR's rows have 4 to 9 pairs of 27. Tiles with more go through their
// offsets in several rounds.
constexpr int32_t kListEntriesARow = 10;
// What a tile is chosen for where nobody says: so many blocks for each SM.
constexpr int64_t kWantedBlocksAnSm = 2;
constexpr int32_t kMaxBlockChannels = 128;
constexpr int32_t kLeastSplitChannels = 64;  // slices are not made narrower than this to have more blocks

struct DeviceLimits {
  int device = 0;
  int major = 0;
  int num_sms = 0;
  int block_bytes = 0;     // shared memory that a block may have
  int sm_bytes = 0;        // that an SM has
  int reserved_bytes = 0;  // that it keeps for each block
};

cudaError_t ReadLimits(DeviceLimits& limits) {
  VOXSERVE_RETURN_IF_CUDA(cudaGetDevice(&limits.device));
  const auto read = [&](int& value, cudaDeviceAttr attribute) {
    return cudaDeviceGetAttribute(&value, attribute, limits.device);
  };
  VOXSERVE_RETURN_IF_CUDA(read(limits.major, cudaDevAttrComputeCapabilityMajor));
  VOXSERVE_RETURN_IF_CUDA(read(limits.num_sms, cudaDevAttrMultiProcessorCount));
  VOXSERVE_RETURN_IF_CUDA(read(limits.block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin));
  VOXSERVE_RETURN_IF_CUDA(read(limits.sm_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor));
  return read(limits.reserved_bytes, cudaDevAttrReservedSharedMemoryPerBlock);
}

constexpr int32_t RoundUp(int64_t value, int32_t multiple) {
  return static_cast<int32_t>((value + multiple - 1) / multiple * multiple);
}

// The widest slices of out_channels.
int32_t WidestSlice(int32_t out_channels) {
  const int32_t num_slices = (out_channels - 1) / kMaxBlockChannels + 1;
  return RoundUp((out_channels - 1) / num_slices + 1, kWarpChannels);
}

// Fills in the sizes of stages, as large as they fit into `bytes` with all the rest. False where none does.
bool FitStages(int32_t in_channels, int64_t bytes, FetchOnDemandShape& shape) {
  // An offset's pairs of a tile are a fraction of its rows, the more so the more rows it has.
  const int32_t wanted_pairs = shape.tile_rows > 128 ? kMaxStagePairs : std::min(shape.tile_rows, 64);
  for (const int32_t quarters : {4, 3, 2}) {
    for (const int32_t max_chunk : {kMaxChunkChannels, 32}) {
      shape.stage_pairs = RoundUp(wanted_pairs * quarters / 4, 16);
      shape.num_chunks = (in_channels - 1) / max_chunk + 1;
      shape.chunk_channels = RoundUp((in_channels - 1) / shape.num_chunks + 1, 16);
      shape.num_chunks = (in_channels - 1) / shape.chunk_channels + 1;
      for (shape.num_stages = kMaxStages; shape.num_stages >= kMinStages; --shape.num_stages) {
        if (shape.SharedBytes() <= bytes) return true;
      }
    }
  }
  return false;
}

// The shape of blocks of block_channels and tile_rows; false where the device's shared memory is too small. Several
// blocks an SM fill each other's waits; a block that is alone there gets more warps.
bool ChooseShape(const DeviceLimits& limits, int32_t num_offsets, int32_t in_channels, int32_t block_channels,
                 int32_t tile_rows, FetchOnDemandShape& shape) {
  shape = {.block_channels = block_channels,
           .tile_rows = tile_rows,
           .num_ranges = num_offsets,
           .list_entries = tile_rows * std::clamp(num_offsets, 1, kListEntriesARow)};
  for (const int32_t blocks_an_sm : {4, 2, 1}) {
    if (blocks_an_sm == 4 && block_channels > kWarpChannels) continue;
    shape.pair_groups = blocks_an_sm == 1 || block_channels <= 64 ? 4 : 2;
    const int64_t bytes = std::min(limits.sm_bytes / blocks_an_sm - limits.reserved_bytes, limits.block_bytes);
    if (FitStages(in_channels, bytes, shape)) return true;
  }
  return false;
}

int64_t NumTiles(int64_t num_rows, int32_t tile_rows) { return (num_rows + tile_rows - 1) / tile_rows; }

// The width of slices for this many row tiles: narrower than the widest where those would leave SMs without work and
// nothing is padded for it. Narrow slices gather inputs again but share the weights among them.
int32_t ChooseSlice(int32_t out_channels, int64_t num_tiles, int32_t num_sms) {
  const int32_t widest = WidestSlice(out_channels);
  const int64_t padded = int64_t{(out_channels - 1) / widest + 1} * widest;
  if (widest % 2 == 0 && widest / 2 >= kLeastSplitChannels && num_tiles * (padded / widest) < num_sms) {
    return widest / 2;
  }
  return widest;
}

bool Serves(DType dtype, int32_t in_channels, int32_t out_channels, const DeviceLimits& limits) {
  return (dtype == DType::kFloat16 || dtype == DType::kBfloat16) && in_channels > 0 && out_channels > 0 &&
         limits.major >= 8;
}

std::vector<int32_t> AllowedTileRows(int32_t in_channels, int32_t out_channels, const DeviceLimits& limits) {
  std::vector<int32_t> allowed;
  FetchOnDemandShape shape;
  for (const int32_t rows : kTileRows) {
    if (ChooseShape(limits, kMaxKernelVolume, in_channels, WidestSlice(out_channels), rows, shape)) {
      allowed.push_back(rows);
    }
  }
  return allowed;
}

// The largest tile that still gives the device enough blocks, else the smallest.
int32_t DefaultTileRows(const std::vector<int32_t>& allowed, int64_t num_rows, int32_t out_channels, int32_t num_sms) {
  const int64_t num_slices = (out_channels - 1) / WidestSlice(out_channels) + 1;
  int32_t chosen = allowed.front();
  for (const int32_t rows : allowed) {
    if (rows <= 256 && NumTiles(num_rows, rows) * num_slices >= kWantedBlocksAnSm * num_sms) chosen = rows;
  }
  return chosen;
}

// Lets the kernel have as much shared memory as a block may, once a device.
template <typename T, typename Block>
cudaError_t AllowSharedMemory(const DeviceLimits& limits) {
  static std::atomic<uint64_t> done = 0;  // bits of devices; setting it again does no harm
  const uint64_t bit = uint64_t{1} << (limits.device % 64);
  if (limits.device < 64 && (done.load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
  const auto kernel = FetchOnDemandKernel<T, Block>;
  VOXSERVE_RETURN_IF_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limits.block_bytes));
  VOXSERVE_RETURN_IF_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  done.fetch_or(bit, std::memory_order_relaxed);
  return cudaSuccess;
}

template <typename T, typename Block>
cudaError_t LaunchBlocks(const FetchOnDemandArguments<T>& arguments, int64_t num_blocks, const DeviceLimits& limits,
                         cudaStream_t stream) {
  const cudaError_t allowed = AllowSharedMemory<T, Block>(limits);
  if (allowed != cudaSuccess) return allowed;
  FetchOnDemandKernel<T, Block><<<static_cast<unsigned>(num_blocks), Block::kThreads,
                                  static_cast<size_t>(arguments.shape.SharedBytes()), stream>>>(arguments);
  return LaunchStatus(stream);
}

template <typename T>
cudaError_t Launch(const FetchOnDemandParams& params, const FetchOnDemandShape& shape, const DeviceLimits& limits,
                   cudaStream_t stream) {
  constexpr auto kValueBytes = static_cast<int64_t>(sizeof(T));
  const auto is_aligned = [](const void* rows, int64_t pitch_bytes) {
    return CommonAlignment().Add(rows).Add(pitch_bytes).bytes() == kVectorBytes;
  };
  CommonAlignment out_alignment;
  out_alignment.Add(params.out).Add(params.out_pitch * SizeOf(params.out_dtype)).Add(params.out_channels * kValueBytes);
  AddEpilogue(params.epilogue, out_alignment);
  const int32_t num_slices = (params.out_channels - 1) / shape.block_channels + 1;
  const FetchOnDemandArguments<T> arguments{
      .shape = shape,
      .neighbours = params.neighbours,
      .neighbours_pitch = params.neighbours_pitch,
      .num_offsets = params.num_offsets,
      .is_symmetric = params.is_symmetric,
      .num_out_rows = params.num_out_rows,
      .in = static_cast<const T*>(params.in),
      .in_pitch = params.in_pitch,
      .in_channels = params.in_channels,
      .in_vectors = is_aligned(params.in, params.in_pitch * kValueBytes),
      .weights = static_cast<const T*>(params.weights),
      .weight_vectors = is_aligned(params.weights, params.out_channels * kValueBytes),
      .out_channels = params.out_channels,
      .num_slices = num_slices,
      .out = params.out,
      .out_pitch = params.out_pitch,
      .is_out_float = params.out_dtype == DType::kFloat32,
      .out_vectors = out_alignment.bytes() == kVectorBytes,
      .epilogue = TypedEpilogue<T, float>(params.epilogue)};
  const int64_t num_blocks = NumTiles(params.num_out_rows, shape.tile_rows) * num_slices;
  if (num_blocks > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  const bool has_four_groups = shape.pair_groups == 4;
  switch (shape.block_channels) {
    case 32:
      return LaunchBlocks<T, FetchOnDemandBlock<32, 4>>(arguments, num_blocks, limits, stream);
    case 64:
      return LaunchBlocks<T, FetchOnDemandBlock<64, 4>>(arguments, num_blocks, limits, stream);
    case 96:
      return has_four_groups ? LaunchBlocks<T, FetchOnDemandBlock<96, 4>>(arguments, num_blocks, limits, stream)
                             : LaunchBlocks<T, FetchOnDemandBlock<96, 2>>(arguments, num_blocks, limits, stream);
    case 128:
      return has_four_groups ? LaunchBlocks<T, FetchOnDemandBlock<128, 4>>(arguments, num_blocks, limits, stream)
                             : LaunchBlocks<T, FetchOnDemandBlock<128, 2>>(arguments, num_blocks, limits, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

std::vector<int32_t> FetchOnDemandTileRows(DType dtype, int32_t in_channels, int32_t out_channels) {
  DeviceLimits limits;
  if (ReadLimits(limits) != cudaSuccess || !Serves(dtype, in_channels, out_channels, limits)) return {};
  return AllowedTileRows(in_channels, out_channels, limits);
}

cudaError_t FetchOnDemand(const FetchOnDemandParams& params, cudaStream_t stream) {
  if (params.num_out_rows == 0 || params.out_channels == 0) return cudaSuccess;
  if (params.num_offsets > kMaxKernelVolume) return cudaErrorInvalidValue;
  if (params.out_dtype != params.dtype && params.out_dtype != DType::kFloat32) return cudaErrorInvalidValue;
  // A symmetric walk puts the weights of its centre last; no other offset can be the identity there.
  if (params.is_symmetric && params.identity_offset >= 0 && params.identity_offset != params.num_offsets / 2) {
    return cudaErrorInvalidValue;
  }
  const NvtxRange range("FetchOnDemand");
  DeviceLimits limits;
  VOXSERVE_RETURN_IF_CUDA(ReadLimits(limits));
  if (!Serves(params.dtype, params.in_channels, params.out_channels, limits)) {
    return limits.major < 8 ? cudaErrorNotSupported : cudaErrorInvalidValue;
  }
  const std::vector<int32_t> allowed = AllowedTileRows(params.in_channels, params.out_channels, limits);
  int32_t tile_rows = params.tile_rows;
  if (tile_rows == 0 && !allowed.empty()) {
    tile_rows = DefaultTileRows(allowed, params.num_out_rows, params.out_channels, limits.num_sms);
  }
  if (std::find(allowed.begin(), allowed.end(), tile_rows) == allowed.end()) return cudaErrorInvalidValue;

  FetchOnDemandShape shape;
  const int32_t block_channels =
      ChooseSlice(params.out_channels, NumTiles(params.num_out_rows, tile_rows), limits.num_sms);
  if (!ChooseShape(limits, params.num_offsets, params.in_channels, block_channels, tile_rows, shape)) {
    return cudaErrorInvalidValue;
  }
  if (params.dtype == DType::kFloat16) return Launch<__half>(params, shape, limits, stream);
  return Launch<__nv_bfloat16>(params, shape, limits, stream);
}

}  // namespace voxserve::kernels::cuda
