#include <algorithm>
#include <bit>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/morton_key.h"
#include "kernels/core/binary_search.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/radix_sort.h"
#include "kernels/core/visit_dimension.cuh"
#include "kernels/points/tile_runs.cuh"
#include "kernels/points/voxelize.h"

// Voxelize (voxelize.h) computes the voxel index of every point and sorts (key, point). A voxel begins where a sorted
// key differs from the key before it. Voxels are counted block by block, then numbered and written.

namespace voxserve::kernels::cuda {
namespace {

constexpr int32_t kNoIndex = INT_MAX;  // above every index that a point can have if the origin is kMinimum

// The bounds of voxel indices that the host knows before it sees the points.
struct IndexBounds {
  double min_index[kMaxDimension] = {};
  double max_index[kMaxDimension] = {};
  float shift[kMaxDimension] = {};
};

IndexBounds BoundsOf(const VoxelizeParams& params) {
  IndexBounds bounds;
  int64_t shape[kMaxDimension];
  GridShape(params, shape);
  const int64_t limit = VoxelIndexLimit(params.dimension, params.origin);
  const bool is_grid = params.origin == VoxelOrigin::kRange;
  for (int axis = 0; axis < params.dimension; ++axis) {
    bounds.min_index[axis] = static_cast<double>(is_grid ? 0 : -limit);
    bounds.max_index[axis] = static_cast<double>(is_grid ? std::min(shape[axis] - 1, limit) : limit);
    bounds.shift[axis] = is_grid ? params.range_min[axis] : 0.0F;
  }
  return bounds;
}

// SortKeys computes the keys of the radix sort. Each pass of the sort handles only a few bits, so a key is a MortonKey
// without the bits that are the same in every key of this batch. From the top, a key has the sample, then those bits of
// the MortonKey that are in high_bits, then its lowest low_bits. A point without a voxel has a key of all ones. No
// point with a voxel has it, since its coordinates never have all bits of an axis (AxisBitsFor; kNoKey).
template <int kDimension>
struct SortKeys {
  using Key = MortonKey<kDimension>;

  int low_bits = Key::kBatchShift;
  uint64_t high_bits = 0;  // where some axes have bits and others do not: the axes with the widest range
  int coordinate_bits = Key::kBatchShift;
  int sample_bits = 0;
  uint64_t constant_bits = 0;  // the set bits of every MortonKey that a key leaves out

  int num_bits() const { return coordinate_bits + sample_bits; }
  __device__ uint64_t low_mask() const { return (uint64_t{1} << low_bits) - 1; }
  // Returns the key of a point without a voxel, which is above every other key.
  __device__ uint64_t none() const { return ~uint64_t{0} >> (64 - coordinate_bits - sample_bits); }
  __device__ uint64_t Pack(int32_t sample, const Axes& coordinate) const {
    const uint64_t morton = Key::Pack(0, coordinate);
    uint64_t key = static_cast<uint64_t>(sample) << coordinate_bits | (morton & low_mask());
    int to = low_bits;
    for (uint64_t left = high_bits; left != 0; left &= left - 1, ++to) key |= (morton >> LowestBit(left) & 1) << to;
    return key;
  }
  __device__ int32_t Sample(uint64_t key) const { return static_cast<int32_t>(key >> coordinate_bits); }
  __device__ uint64_t ToMorton(uint64_t key) const {
    uint64_t morton = key >> coordinate_bits << Key::kBatchShift | constant_bits | (key & low_mask());
    int from = low_bits;
    for (uint64_t left = high_bits; left != 0; left &= left - 1, ++from) morton |= (key >> from & 1) << LowestBit(left);
    return morton;
  }

 private:
  __device__ static int LowestBit(uint64_t bits) { return __ffsll(static_cast<int64_t>(bits)) - 1; }
};

// Returns the largest difference of the indices of two points within the range on this axis. Division and rounding are
// monotonic, so the ends of the range have the smallest and the largest index.
int64_t RangeSpan(const VoxelizeParams& params, const IndexBounds& bounds, int axis) {
  const auto index = [&](float x) {
    const float cells = x / params.voxel_size[axis];
    const float rounded = params.rounding == VoxelRounding::kHalfEven ? std::nearbyint(cells) : std::floor(cells);
    return std::min(bounds.max_index[axis], std::max(bounds.min_index[axis], static_cast<double>(rounded)));
  };
  return static_cast<int64_t>(index(params.range_max[axis])) - static_cast<int64_t>(index(params.range_min[axis]));
}

template <int kDimension>
SortKeys<kDimension> SortKeysOf(const VoxelizeParams& params, const IndexBounds& bounds) {
  using Key = MortonKey<kDimension>;
  SortKeys<kDimension> keys;
  keys.sample_bits = static_cast<int>(std::bit_width(static_cast<uint32_t>(params.num_samples) - 1));
  if (params.origin == VoxelOrigin::kZero) return keys;  // with all coordinate bits of a MortonKey
  // No coordinate is negative.
  int axis_bits[kDimension];
  for (int axis = 0; axis < kDimension; ++axis) {
    const auto widest = static_cast<int64_t>(bounds.max_index[axis] - bounds.min_index[axis]);
    const bool is_cut = params.origin == VoxelOrigin::kMinimum && params.has_range;
    axis_bits[axis] = AxisBitsFor(std::max<int64_t>(is_cut ? RangeSpan(params, bounds, axis) : widest, 0));
    const int expected = params.origin == VoxelOrigin::kMinimum ? params.axis_bits[axis] : 0;
    if (expected > 0) axis_bits[axis] = std::min(axis_bits[axis], expected);
  }
  const int fewest = *std::min_element(axis_bits, axis_bits + kDimension);
  keys.low_bits = kDimension * fewest;
  keys.coordinate_bits = std::accumulate(axis_bits, axis_bits + kDimension, 0);
  for (int axis = 0; axis < kDimension; ++axis) {
    for (int bit = fewest; bit < axis_bits[axis]; ++bit) {
      keys.high_bits |= uint64_t{1} << (bit * kDimension + kDimension - 1 - axis);
    }
  }
  keys.constant_bits = Key::Pack(0, {0, 0, 0, 0});
  return keys;
}

// Fills index[0, kDimension); returns 0 or the code of a point without a voxel.
template <int kDimension>
__device__ int32_t IndexPoint(const VoxelizeParams& params, const IndexBounds& bounds, int64_t point, Axes& index) {
  if (params.is_valid != nullptr && params.is_valid[point] == 0) return kInvalidPoint;
  const float* const row = FloatsOf(params.axes, point);
  float x[kDimension];
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) x[axis] = row[axis];
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    if (!(fabsf(x[axis]) <= FLT_MAX)) return kInvalidPoint;
  }
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    if (params.has_range && !(x[axis] >= params.range_min[axis] && x[axis] < params.range_max[axis])) {
      return kOutOfRangePoint;
    }
    const float cells = __fdiv_rn(__fsub_rn(x[axis], bounds.shift[axis]), params.voxel_size[axis]);
    const float rounded = params.rounding == VoxelRounding::kHalfEven ? rintf(cells) : floorf(cells);
    if (!(rounded >= bounds.min_index[axis] && rounded <= bounds.max_index[axis])) return kOutOfRangePoint;
    index[axis] = static_cast<int32_t>(rounded);
  }
  return 0;
}

// ---- Kernels -----------------------------------------------------------------------------------------------------

// Sets the results of every sample to those of a sample without points. Later kernels change them where points have
// voxels. Only sample_origin becomes kNoIndex if the origin is kMinimum; MakeSortKeysKernel sets it to 0 for samples
// without voxels.
__global__ void ClearSamplesKernel(const __grid_constant__ VoxelizeParams params) {
  WaitForEarlierKernels();
  const int32_t sample = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (sample > params.num_samples) return;
  params.sample_begin[sample] = 0;
  if (sample == 0) params.voxel_begin[0] = 0;
  if (sample == params.num_samples) return;
  params.num_invalid[sample] = 0;
  params.num_out_of_range[sample] = 0;
  const bool has_minimum = params.origin == VoxelOrigin::kMinimum && params.num_points > 0;
  for (int axis = 0; axis < kMaxDimension; ++axis) {
    params.sample_origin[sample][axis] = has_minimum && axis < params.dimension ? kNoIndex : 0;
  }
}

__device__ void Count(int64_t* counter, int number) {
  if (number > 0) atomicAdd(reinterpret_cast<unsigned long long*>(counter), static_cast<unsigned long long>(number));
}

// Returns the number of points that exist.
__device__ int64_t NumPoints(const VoxelizeParams& params) {
  return min(params.num_points, params.point_begin[params.num_samples]);
}

// Writes the codes of all points to point_to_voxel, and the counts of points without a voxel. If the origin is
// kMinimum, also writes each sample's smallest index to sample_origin.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    IndexPointsKernel(const __grid_constant__ VoxelizeParams params, const __grid_constant__ IndexBounds bounds) {
  WaitForEarlierKernels();
  __shared__ int32_t first_sample;
  __shared__ int32_t block_minimum[kDimension];
  const int64_t point = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  // Threads past the last point count nothing; they use the last point's sample.
  const int64_t num_points = NumPoints(params);
  const bool is_point = point < num_points;
  const int32_t sample = RunOf(params.point_begin, params.num_samples, is_point ? point : num_points - 1);
  Axes index = {kNoIndex, kNoIndex, kNoIndex, kNoIndex};
  int32_t code = 0;
  if (is_point) {
    code = IndexPoint<kDimension>(params, bounds, point, index);
    params.point_to_voxel[point] = code;
    if (code != 0) index = {kNoIndex, kNoIndex, kNoIndex, kNoIndex};
  }

  if (threadIdx.x == 0) first_sample = sample;
  if (threadIdx.x < kDimension) block_minimum[threadIdx.x] = kNoIndex;
  __syncthreads();
  const bool has_minimum = params.origin == VoxelOrigin::kMinimum;
  if (__syncthreads_and(sample == first_sample) == 0) {
    Count(params.num_invalid + sample, code == kInvalidPoint);
    Count(params.num_out_of_range + sample, code == kOutOfRangePoint);
    if (has_minimum && index[0] != kNoIndex) {
#pragma unroll
      for (int axis = 0; axis < kDimension; ++axis) atomicMin(&params.sample_origin[sample][axis], index[axis]);
    }
    return;
  }

  const int num_invalid = __syncthreads_count(code == kInvalidPoint);
  const int num_out_of_range = __syncthreads_count(code == kOutOfRangePoint);
  if (threadIdx.x == 0) {
    Count(params.num_invalid + sample, num_invalid);
    Count(params.num_out_of_range + sample, num_out_of_range);
  }
  if (!has_minimum) return;
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
    int32_t minimum = index[axis];
#pragma unroll
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
      minimum = min(minimum, __shfl_xor_sync(~0u, minimum, distance));
    }
    if (threadIdx.x % kWarpThreads == 0) atomicMin(&block_minimum[axis], minimum);
  }
  __syncthreads();
  if (threadIdx.x < kDimension && block_minimum[threadIdx.x] != kNoIndex) {
    atomicMin(&params.sample_origin[sample][threadIdx.x], block_minimum[threadIdx.x]);
  }
}

// Writes the keys to sort and their points, and updates max_coordinate. The grid covers all points and all samples.
// The places after the last point get the key of a point without a voxel.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    MakeSortKeysKernel(const __grid_constant__ VoxelizeParams params, const __grid_constant__ IndexBounds bounds,
                       SortKeys<kDimension> layout, uint64_t* keys, int32_t* points) {
  WaitForEarlierKernels();
  const int64_t point = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (point < params.num_samples && params.sample_origin[point][0] == kNoIndex) {
    // The sample has no voxels, so no other thread reads or writes its origin here.
    for (int axis = 0; axis < kMaxDimension; ++axis) params.sample_origin[point][axis] = 0;
  }
  uint64_t key = layout.none();
  int32_t largest[kDimension] = {};
  if (point < NumPoints(params) && params.point_to_voxel[point] == 0) {
    const int32_t sample = RunOf(params.point_begin, params.num_samples, point);
    Axes coordinate = {0, 0, 0, 0};
    IndexPoint<kDimension>(params, bounds, point, coordinate);
#pragma unroll
    for (int axis = 0; axis < kDimension; ++axis) {
      coordinate[axis] -= params.sample_origin[sample][axis];
      largest[axis] = coordinate[axis];
    }
    key = layout.Pack(sample, coordinate);
  }
  if (point < params.num_points) {
    keys[point] = key;
    points[point] = static_cast<int32_t>(point);
  }
  if (params.max_coordinate == nullptr) return;
  // A block does one atomic operation per axis. Those of all warps would queue at the same addresses.
  __shared__ int32_t largest_of_warp[kDimension][kBlockWarps];
#pragma unroll
  for (int axis = 0; axis < kDimension; ++axis) {
#pragma unroll
    for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
      largest[axis] = max(largest[axis], __shfl_xor_sync(~0u, largest[axis], distance));
    }
    if (threadIdx.x % kWarpThreads == 0) largest_of_warp[axis][threadIdx.x / kWarpThreads] = largest[axis];
  }
  __syncthreads();
  if (threadIdx.x >= kDimension) return;
  int32_t largest_of_block = 0;
#pragma unroll
  for (int warp = 0; warp < kBlockWarps; ++warp)
    largest_of_block = max(largest_of_block, largest_of_warp[threadIdx.x][warp]);
  // A block whose value is not above what is there already leaves out the atomic operation.
  int64_t* const most = params.max_coordinate + threadIdx.x;
  if (largest_of_block > *static_cast<volatile int64_t*>(most)) {
    atomicMax(reinterpret_cast<long long*>(most), static_cast<long long>(largest_of_block));
  }
}

template <int kDimension>
struct SortedPoints {
  SortKeys<kDimension> layout;
  const uint64_t* keys;
  const int32_t* points;
  int64_t num_points;

  // Points without a voxel lie after all others.
  __device__ bool HasVoxel(int64_t i) const { return keys[i] != layout.none(); }
  __device__ bool IsHead(int64_t i) const { return HasVoxel(i) && (i == 0 || keys[i] != keys[i - 1]); }
};

template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    CountVoxelsKernel(SortedPoints<kDimension> sorted, int64_t rows_a_run, int32_t* run_counts) {
  WaitForEarlierKernels();
  const int64_t begin = int64_t{blockIdx.x} * rows_a_run;
  const int64_t end = min(begin + rows_a_run, sorted.num_points);
  int64_t num_heads = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlockThreads) num_heads += sorted.IsHead(i) ? 1 : 0;
  num_heads = BlockSum(num_heads);
  if (threadIdx.x == 0) run_counts[blockIdx.x] = static_cast<int32_t>(num_heads);
}

// Writes the results of the i-th sorted point, which belongs to `voxel`.
template <int kDimension>
__device__ void WriteSortedPoint(const VoxelizeParams& params, const SortedPoints<kDimension>& sorted, int64_t i,
                                 bool is_head, int32_t voxel) {
  const uint64_t key = sorted.keys[i];
  const int32_t sample = sorted.layout.Sample(key);
  const int32_t point = sorted.points[i];
  const bool is_last = i + 1 == sorted.num_points || !sorted.HasVoxel(i + 1);
  params.sorted_points[i] = point;
  params.point_to_voxel[point] = voxel;
  if (is_head) {
    params.keys[voxel] = sorted.layout.ToMorton(key);
    params.voxel_begin[voxel] = i;
    const int32_t sample_before = i == 0 ? -1 : sorted.layout.Sample(sorted.keys[i - 1]);
    for (int32_t s = sample_before + 1; s <= sample; ++s) params.sample_begin[s] = voxel;
  }
  if (is_last) {
    params.voxel_begin[voxel + 1] = i + 1;
    for (int32_t s = sample + 1; s <= params.num_samples; ++s) params.sample_begin[s] = voxel + 1;
  }
}

template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    WriteVoxelsKernel(const __grid_constant__ VoxelizeParams params, SortedPoints<kDimension> sorted,
                      int64_t rows_a_run, const int32_t* run_counts) {
  WaitForEarlierKernels();
  const int64_t begin = int64_t{blockIdx.x} * rows_a_run;
  const int64_t end = min(begin + rows_a_run, sorted.num_points);
  auto num_before = static_cast<int32_t>(CountBeforeRun(run_counts));
  for (int64_t tile = begin; tile < end; tile += kTileRows) {
    const int64_t i = tile + threadIdx.x;
    const bool is_head = i < end && sorted.IsHead(i);
    int32_t rank;
    const int32_t num_heads = RankInTile(is_head, rank);
    if (i < end && sorted.HasVoxel(i)) {
      WriteSortedPoint(params, sorted, i, is_head, num_before + rank - (is_head ? 0 : 1));
    }
    num_before += num_heads;
  }
}

// ---- Launchers -----------------------------------------------------------------------------------------------------

struct Workspace {
  explicit Workspace(const VoxelizeParams& params) {
    WorkspaceCutter cutter(params.workspace);
    for (uint64_t*& buffer : pairs.keys) buffer = cutter.Take<uint64_t>(params.num_points);
    for (int32_t*& buffer : pairs.values) buffer = cutter.Take<int32_t>(params.num_points);
    run_counts = cutter.Take<int32_t>(kMaxRuns);
    sort_scratch = cutter.Take<char>(static_cast<int64_t>(SortPairsScratchBytes<uint64_t>(params.num_points)));
    bytes = cutter.bytes();
  }

  PairBuffers<uint64_t> pairs;  // of a key and a point
  int32_t* run_counts;
  char* sort_scratch;
  size_t bytes;
};

template <int kDimension>
cudaError_t VoxelizePoints(const VoxelizeParams& params, cudaStream_t stream) {
  const IndexBounds bounds = BoundsOf(params);
  const SortKeys<kDimension> layout = SortKeysOf<kDimension>(params, bounds);
  Workspace workspace(params);
  PairBuffers<uint64_t>& pairs = workspace.pairs;
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(IndexPointsKernel<kDimension>, NumBlocks(params.num_points), kBlockThreads, 0,
                                      stream, params, bounds));
  const unsigned num_blocks = NumBlocks(std::max<int64_t>(params.num_points, params.num_samples));
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(MakeSortKeysKernel<kDimension>, num_blocks, kBlockThreads, 0, stream, params,
                                      bounds, layout, pairs.current_keys(), pairs.current_values()));
  VOXSERVE_RETURN_IF_CUDA(SortPairs(pairs, params.num_points, layout.num_bits(), workspace.sort_scratch, stream));
  const SortedPoints<kDimension> sorted = {.layout = layout,
                                           .keys = pairs.current_keys(),
                                           .points = pairs.current_values(),
                                           .num_points = params.num_points};
  const TileRuns runs(params.num_points);
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(CountVoxelsKernel<kDimension>, runs.num_runs, kBlockThreads, 0, stream, sorted,
                                      runs.rows_a_run, workspace.run_counts));
  return LaunchEarly(WriteVoxelsKernel<kDimension>, runs.num_runs, kBlockThreads, 0, stream, params, sorted,
                     runs.rows_a_run, workspace.run_counts);
}

}  // namespace

size_t VoxelizeWorkspaceBytes(const VoxelizeParams& params) {
  VoxelizeParams measured = params;
  measured.workspace = nullptr;
  return Workspace(measured).bytes;
}

cudaError_t Voxelize(const VoxelizeParams& params, cudaStream_t stream) {
  const NvtxRange range("Voxelize");
  VOXSERVE_RETURN_IF_CUDA(
      LaunchEarly(ClearSamplesKernel, NumBlocks(params.num_samples + 1), kBlockThreads, 0, stream, params));
  if (params.num_points == 0) return cudaSuccess;
  return VisitDimension(params.dimension, [&](auto dimension) { return VoxelizePoints<dimension>(params, stream); });
}

}  // namespace voxserve::kernels::cuda
