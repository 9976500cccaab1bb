#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

#include "kernels/coordinates/coordinate_table.cuh"
#include "kernels/coordinates/morton_key.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "tests/bench/plain_mapping.h"

namespace voxserve::bench {
namespace {

using kernels::Axes;
using kernels::ConvGeometry;
using kernels::kNoKey;
using kernels::cuda::kBlockThreads;
using kernels::cuda::LaunchStatus;
using kernels::cuda::NumBlocks;
using Key = kernels::MortonKey<3>;

__device__ int64_t ThreadIndex() { return int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; }

// --- Output coordinates ----------------------------------------------------------------------------------------------

// A candidate for an output site, not yet divided by the stride.
struct alignas(16) Candidate {
  int32_t sample;
  int32_t scaled_site[3];  // stride * the site
};

// candidates: [num_in, K]
__global__ void __launch_bounds__(kBlockThreads)
    AddOffsetsKernel(const ConvGeometry geometry, const uint64_t* in_keys, int64_t num_in, Candidate* candidates) {
  const int32_t num_offsets = geometry.NumOffsets();
  const int64_t index = ThreadIndex();
  if (index >= num_in * num_offsets) return;
  const uint64_t key = in_keys[index / num_offsets];
  const Axes delta = geometry.Delta(static_cast<int32_t>(index % num_offsets));
  Candidate candidate{.sample = Key::Sample(key), .scaled_site = {}};
  for (int axis = 0; axis < 3; ++axis) candidate.scaled_site[axis] = Key::Coordinate(key, axis) - delta[axis];
  candidates[index] = candidate;
}

// passes: [count], 1 if the stride divides every axis.
__global__ void __launch_bounds__(kBlockThreads)
    ModularCheckKernel(const Axes stride, const Candidate* candidates, int64_t count, uint8_t* passes) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  const Candidate candidate = candidates[index];
  bool is_even = true;
  for (int axis = 0; axis < 3; ++axis) is_even = is_even && candidate.scaled_site[axis] % stride[axis] == 0;
  passes[index] = is_even ? 1 : 0;
}

__global__ void __launch_bounds__(kBlockThreads)
    BoundaryCheckKernel(const Axes stride, const Axes out_shape, const Candidate* candidates, int64_t count,
                        uint8_t* passes) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  const Candidate candidate = candidates[index];
  bool is_inside = passes[index] != 0;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t scaled = candidate.scaled_site[axis];
    is_inside = is_inside && scaled >= 0 && scaled <= int64_t{stride[axis]} * (out_shape[axis] - 1);
  }
  passes[index] = is_inside ? 1 : 0;
}

// keys: [count], kNoKey if a check failed.
__global__ void __launch_bounds__(kBlockThreads)
    ToKeysKernel(const Axes stride, const Candidate* candidates, int64_t count, const uint8_t* passes, uint64_t* keys) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  const Candidate candidate = candidates[index];
  Axes site = {0, 0, 0, 0};
  for (int axis = 0; axis < 3; ++axis) site[axis] = candidate.scaled_site[axis] / stride[axis];
  keys[index] = passes[index] != 0 ? Key::Pack(candidate.sample, site) : kNoKey;
}

struct IsKey {
  __device__ bool operator()(uint64_t key) const { return key != kNoKey; }
};

// Device memory of the stages. The three CUB passes share `temp`.
struct Workspace {
  Candidate* candidates;
  uint8_t* passes;
  uint64_t* keys;     // [candidates]
  uint64_t* kept;     // [num_kept]
  uint64_t* sorted;   // [num_kept]
  int64_t* num_kept;  // [1] known already, but the compaction writes it
  char* temp;
  size_t temp_bytes;
  size_t bytes;

  explicit Workspace(const PlainOutputCoordinatesParams& params) {
    const int64_t count = params.definition.num_in * params.definition.geometry.NumOffsets();
    kernels::cuda::WorkspaceCutter cutter(params.definition.workspace);
    candidates = cutter.Take<Candidate>(count);
    passes = cutter.Take<uint8_t>(count);
    keys = cutter.Take<uint64_t>(count);
    kept = cutter.Take<uint64_t>(params.num_kept);
    sorted = cutter.Take<uint64_t>(params.num_kept);
    num_kept = cutter.Take<int64_t>(1);
    size_t compact_bytes = 0, sort_bytes = 0, unique_bytes = 0;
    cub::DeviceSelect::If(nullptr, compact_bytes, keys, kept, num_kept, count, IsKey{});
    cub::DeviceRadixSort::SortKeys(nullptr, sort_bytes, kept, sorted, params.num_kept);
    cub::DeviceSelect::Unique(nullptr, unique_bytes, sorted, params.definition.out_keys, params.definition.num_out,
                              params.num_kept);
    temp_bytes = max(compact_bytes, max(sort_bytes, unique_bytes));
    temp = cutter.Take<char>(static_cast<int64_t>(temp_bytes));
    bytes = cutter.bytes();
  }
};

// --- Search ----------------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kBlockThreads)
    PlainSearchKernel(const kernels::NeighbourSearchParams params, const kernels::cuda::CoordinateTable table) {
  const int64_t row = ThreadIndex();
  if (row >= kernels::cuda::NumRows(params.out_capacity, params.num_out)) return;
  const uint64_t key = params.out_keys[row];
  const int32_t num_offsets = params.geometry.NumOffsets();
  const kernels::cuda::HashTable hash(table);
#pragma unroll 1
  for (int32_t k = 0; k < num_offsets; ++k) {
    Axes site = params.geometry.Delta(k);
    for (int axis = 0; axis < 3; ++axis) site[axis] += params.geometry.stride[axis] * Key::Coordinate(key, axis);
    const uint64_t keys[1] = {Key::Pack(Key::Sample(key), site)};
    int32_t found[1];
    hash.Find(keys, /*count=*/1, found);
    params.neighbours[k * params.out_capacity + row] = found[0];
  }
}

}  // namespace

size_t PlainOutputCoordinatesWorkspaceBytes(const PlainOutputCoordinatesParams& params) {
  return params.definition.num_in == 0 ? 0 : Workspace(params).bytes;
}

cudaError_t PlainOutputCoordinates(const PlainOutputCoordinatesParams& params, cudaStream_t stream) {
  const kernels::cuda::NvtxRange range("PlainOutputCoordinates");
  const kernels::OutputCoordinatesParams& definition = params.definition;
  const ConvGeometry& geometry = definition.geometry;
  if (definition.rule != kernels::CoordinateRule::kPadded || geometry.dimension != 3 ||
      definition.out_capacity < params.num_kept) {
    return cudaErrorInvalidValue;
  }
  if (definition.num_in == 0 || params.num_kept == 0) {
    return cudaMemsetAsync(definition.num_out, 0, sizeof(int64_t), stream);
  }
  const Workspace workspace(params);
  const int64_t count = definition.num_in * geometry.NumOffsets();
  const unsigned num_blocks = NumBlocks(count);
  AddOffsetsKernel<<<num_blocks, kBlockThreads, 0, stream>>>(geometry, definition.in_keys, definition.num_in,
                                                             workspace.candidates);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  ModularCheckKernel<<<num_blocks, kBlockThreads, 0, stream>>>(geometry.stride, workspace.candidates, count,
                                                               workspace.passes);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  BoundaryCheckKernel<<<num_blocks, kBlockThreads, 0, stream>>>(geometry.stride, definition.out_shape,
                                                                workspace.candidates, count, workspace.passes);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  ToKeysKernel<<<num_blocks, kBlockThreads, 0, stream>>>(geometry.stride, workspace.candidates, count, workspace.passes,
                                                         workspace.keys);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  size_t temp_bytes = workspace.temp_bytes;
  VOXSERVE_RETURN_IF_CUDA(cub::DeviceSelect::If(workspace.temp, temp_bytes, workspace.keys, workspace.kept,
                                                workspace.num_kept, count, IsKey{}, stream));
  temp_bytes = workspace.temp_bytes;
  VOXSERVE_RETURN_IF_CUDA(cub::DeviceRadixSort::SortKeys(workspace.temp, temp_bytes, workspace.kept, workspace.sorted,
                                                         params.num_kept, 0, 64, stream));
  temp_bytes = workspace.temp_bytes;
  VOXSERVE_RETURN_IF_CUDA(cub::DeviceSelect::Unique(workspace.temp, temp_bytes, workspace.sorted, definition.out_keys,
                                                    definition.num_out, params.num_kept, stream));
  return LaunchStatus(stream);
}

cudaError_t PlainSearchNeighbours(const kernels::NeighbourSearchParams& params,
                                  const kernels::cuda::CoordinateTable& table, cudaStream_t stream) {
  const kernels::cuda::NvtxRange range("PlainSearchNeighbours");
  if (params.dimension != 3) return cudaErrorInvalidValue;
  if (params.out_capacity == 0) return cudaSuccess;
  PlainSearchKernel<<<NumBlocks(params.out_capacity), kBlockThreads, 0, stream>>>(params, table);
  return LaunchStatus(stream);
}

}  // namespace voxserve::bench
