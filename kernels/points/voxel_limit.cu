#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/morton_key.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/radix_sort.h"
#include "kernels/core/visit_dimension.cuh"
#include "kernels/points/tile_runs.cuh"
#include "kernels/points/voxel_limit.h"

// LimitVoxels (voxel_limit.h) first sorts the rows of the voxels, so that the voxels that stay come first in each
// sample. For kNearest these are stable sorts by coordinate, then by distance, then by sample. For kFirstSeen one sort
// by the voxels' first points is enough, since samples follow each other in the input. Then the voxels that stay are
// numbered in the order of the points that Voxelize sorted; the first point of a voxel stands for the voxel.

namespace voxserve::kernels::cuda {
namespace {

constexpr int kSpatialAxes = 3;
constexpr int kDistanceBits = 63;  // bits of a double that is not negative; they sort like the double
constexpr uint64_t kNoDistance = (uint64_t{1} << kDistanceBits) - 1;

struct Workspace {
  explicit Workspace(const VoxelLimitParams& params) {
    const int64_t num_points = params.voxels.num_points;
    const int64_t num_samples = params.voxels.num_samples;
    WorkspaceCutter cutter(params.workspace);
    for (uint64_t*& buffer : pairs.keys) buffer = cutter.Take<uint64_t>(num_points);
    for (int32_t*& buffer : pairs.values) buffer = cutter.Take<int32_t>(num_points);
    distances = cutter.Take<uint64_t>(num_points);
    keys = cutter.Take<uint64_t>(num_points);
    points = cutter.Take<int32_t>(num_points);
    point_rows = cutter.Take<int32_t>(num_points);
    is_kept = cutter.Take<uint8_t>(num_points);
    sample_begin = cutter.Take<int64_t>(num_samples + 1);
    sample_points_begin = cutter.Take<int64_t>(num_samples + 1);
    voxel_counts = cutter.Take<int32_t>(kMaxRuns);
    point_counts = cutter.Take<int32_t>(kMaxRuns);
    sort_scratch = cutter.Take<char>(static_cast<int64_t>(SortPairsScratchBytes<uint64_t>(num_points)));
    bytes = cutter.bytes();
  }

  PairBuffers<uint64_t> pairs;  // of a key to sort by and a row
  uint64_t* distances;          // by row, as bits
  uint8_t* is_kept;             // by row

  // Copies of Voxelize's results, which LimitVoxels overwrites.
  uint64_t* keys;
  int32_t* points;
  int32_t* point_rows;  // [points] the row of each point
  int64_t* sample_begin;
  int64_t* sample_points_begin;  // the first entry of each sample in `points`

  int32_t* voxel_counts;  // [runs] kept voxels
  int32_t* point_counts;  // [runs] kept points
  char* sort_scratch;
  size_t bytes;
};

// Computes the distance with the operations of the CPU's function, each rounded, so that both give the same bits.
template <int kDimension>
__device__ double SquaredDistance(const VoxelizeParams& voxels, const Axes& coordinate, const Axes& origin) {
  const double centre = voxels.rounding == VoxelRounding::kFloor ? 0.5 : 0.0;
  double sum = 0.0;
#pragma unroll
  for (int axis = 0; axis < (kDimension < kSpatialAxes ? kDimension : kSpatialAxes); ++axis) {
    const double cells =
        __dadd_rn(__dadd_rn(static_cast<double>(coordinate[axis]), static_cast<double>(origin[axis])), centre);
    const double start = voxels.origin == VoxelOrigin::kRange ? static_cast<double>(voxels.range_min[axis]) : 0.0;
    const double metres = __dadd_rn(__dmul_rn(cells, static_cast<double>(voxels.voxel_size[axis])), start);
    sum = __dadd_rn(sum, __dmul_rn(metres, metres));
  }
  return sum;
}

// ---- Kernels -----------------------------------------------------------------------------------------------------

// Copies the values that will be overwritten, and computes the distances. The sort keys are coordinates (kNearest) or
// the voxels' first points (kFirstSeen). Rows past the last voxel are sorted after all others. There is a thread for
// each point and each sample.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    MeasureVoxelsKernel(const __grid_constant__ VoxelizeParams voxels, VoxelOrder order,
                        const __grid_constant__ Workspace workspace) {
  using Key = MortonKey<kDimension>;
  constexpr CoordinateKey kLayout(kDimension);
  WaitForEarlierKernels();
  const int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i <= voxels.num_samples) {
    workspace.sample_begin[i] = voxels.sample_begin[i];
    workspace.sample_points_begin[i] = voxels.voxel_begin[voxels.sample_begin[i]];
  }
  if (i >= voxels.num_points) return;
  const int64_t num_voxels = voxels.sample_begin[voxels.num_samples];
  const bool by_distance = order == VoxelOrder::kNearest;
  uint64_t sort_key = by_distance ? kLayout.SampleFloor(1) - 1 : static_cast<uint64_t>(voxels.num_points);
  uint64_t distance = kNoDistance;
  if (i < num_voxels) {
    const uint64_t key = voxels.keys[i];
    workspace.keys[i] = key;
    if (by_distance) {
      const Axes coordinate = Key::Unpack(key);
      sort_key = kLayout.Pack(0, coordinate);
      distance = static_cast<uint64_t>(__double_as_longlong(
          SquaredDistance<kDimension>(voxels, coordinate, voxels.sample_origin[Key::Sample(key)])));
    } else {
      sort_key = static_cast<uint64_t>(voxels.sorted_points[voxels.voxel_begin[i]]);
    }
  }
  workspace.pairs.keys[0][i] = sort_key;
  workspace.pairs.values[0][i] = static_cast<int32_t>(i);
  workspace.distances[i] = distance;
  if (i < voxels.voxel_begin[num_voxels]) {
    const int32_t point = voxels.sorted_points[i];
    workspace.points[i] = point;
    workspace.point_rows[i] = voxels.point_to_voxel[point];
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    TakeDistancesKernel(const int32_t* rows, int64_t num_rows, const uint64_t* distances, uint64_t* sort_keys) {
  WaitForEarlierKernels();
  const int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i < num_rows) sort_keys[i] = distances[rows[i]];
}

template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    TakeSamplesKernel(const int32_t* rows, int64_t num_rows, const __grid_constant__ Workspace workspace,
                      int32_t num_samples, uint64_t* sort_keys) {
  WaitForEarlierKernels();
  const int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i >= num_rows) return;
  const int32_t row = rows[i];
  const bool is_voxel = row < workspace.sample_begin[num_samples];
  sort_keys[i] = static_cast<uint64_t>(is_voxel ? MortonKey<kDimension>::Sample(workspace.keys[row]) : num_samples);
}

// Marks the voxels that stay. rows: the sorted rows; a sample's rows are together, the voxels that stay first.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    MarkFirstKernel(const int32_t* rows, int64_t num_rows, const __grid_constant__ Workspace workspace,
                    int32_t num_samples, int64_t max_voxels) {
  WaitForEarlierKernels();
  const int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (i >= num_rows || i >= workspace.sample_begin[num_samples]) return;
  const int32_t row = rows[i];
  const int32_t sample = MortonKey<kDimension>::Sample(workspace.keys[row]);
  workspace.is_kept[row] = i - workspace.sample_begin[sample] < max_voxels ? 1 : 0;
}

// Says whether the i-th of the sorted points stays.
struct KeptPoint {
  bool is_kept = false;
  bool is_head = false;  // and it is the first point of its voxel
};

__device__ KeptPoint KeptPointAt(const Workspace& workspace, int64_t i) {
  const int32_t row = workspace.point_rows[i];
  const bool is_kept = workspace.is_kept[row] != 0;
  return {.is_kept = is_kept, .is_head = is_kept && (i == 0 || workspace.point_rows[i - 1] != row)};
}

__global__ void __launch_bounds__(kBlockThreads)
    CountKeptKernel(const __grid_constant__ Workspace workspace, int32_t num_samples, int64_t rows_a_run) {
  WaitForEarlierKernels();
  const int64_t begin = int64_t{blockIdx.x} * rows_a_run;
  const int64_t end = min(begin + rows_a_run, workspace.sample_points_begin[num_samples]);
  int64_t num_voxels = 0;
  int64_t num_points = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlockThreads) {
    const KeptPoint kept = KeptPointAt(workspace, i);
    num_voxels += kept.is_head ? 1 : 0;
    num_points += kept.is_kept ? 1 : 0;
  }
  num_voxels = BlockSum(num_voxels);
  num_points = BlockSum(num_points);
  if (threadIdx.x == 0) {
    workspace.voxel_counts[blockIdx.x] = static_cast<int32_t>(num_voxels);
    workspace.point_counts[blockIdx.x] = static_cast<int32_t>(num_points);
  }
}

__global__ void __launch_bounds__(kBlockThreads)
    CloseUpKernel(const __grid_constant__ VoxelizeParams voxels, const __grid_constant__ Workspace workspace,
                  int64_t rows_a_run) {
  WaitForEarlierKernels();
  const int64_t num_points = workspace.sample_points_begin[voxels.num_samples];
  const int64_t begin = int64_t{blockIdx.x} * rows_a_run;
  const int64_t end = min(begin + rows_a_run, num_points);
  auto voxels_before = static_cast<int32_t>(CountBeforeRun(workspace.voxel_counts));
  auto points_before = static_cast<int32_t>(CountBeforeRun(workspace.point_counts));
  for (int64_t tile = begin; tile < end; tile += kTileRows) {
    const int64_t i = tile + threadIdx.x;
    const KeptPoint kept = i < end ? KeptPointAt(workspace, i) : KeptPoint{};
    int32_t point_rank, voxel_rank;
    const int32_t num_kept = RankInTile(kept.is_kept, point_rank);
    const int32_t num_heads = RankInTile(kept.is_head, voxel_rank);
    if (kept.is_kept) {
      const int32_t point = workspace.points[i];
      const int32_t voxel = voxels_before + voxel_rank - (kept.is_head ? 0 : 1);
      const int32_t place = points_before + point_rank;
      voxels.point_to_voxel[point] = voxel;
      voxels.sorted_points[place] = point;
      if (kept.is_head) {
        voxels.keys[voxel] = workspace.keys[workspace.point_rows[i]];
        voxels.voxel_begin[voxel] = place;
      }
    } else if (i < end) {
      voxels.point_to_voxel[workspace.points[i]] = kDroppedPoint;
    }
    voxels_before += num_heads;
    points_before += num_kept;
  }
  // The block with the last point writes the end of voxel_begin; if there are no points, the first block does.
  const bool is_last = begin < end ? end == num_points : blockIdx.x == 0;
  if (is_last && threadIdx.x == 0) voxels.voxel_begin[voxels_before] = points_before;
}

// A thread handles one sample. One more thread writes the end of sample_begin.
__global__ void __launch_bounds__(kBlockThreads)
    CountDroppedKernel(const __grid_constant__ VoxelLimitParams params, const __grid_constant__ Workspace workspace) {
  WaitForEarlierKernels();
  const int32_t sample = static_cast<int32_t>(blockIdx.x) * kBlockThreads + static_cast<int32_t>(threadIdx.x);
  if (sample > params.voxels.num_samples) return;
  const auto num_kept = [&](int32_t of) {
    return min(workspace.sample_begin[of + 1] - workspace.sample_begin[of], params.max_voxels);
  };
  int64_t begin = 0;
  for (int32_t before = 0; before < sample; ++before) begin += num_kept(before);
  params.voxels.sample_begin[sample] = begin;
  if (sample == params.voxels.num_samples) return;
  const int64_t num_voxels = workspace.sample_begin[sample + 1] - workspace.sample_begin[sample];
  const int64_t num_points = workspace.sample_points_begin[sample + 1] - workspace.sample_points_begin[sample];
  const int64_t* const voxel_begin = params.voxels.voxel_begin;
  params.num_dropped_voxels[sample] = num_voxels - num_kept(sample);
  params.num_dropped_points[sample] = num_points - (voxel_begin[begin + num_kept(sample)] - voxel_begin[begin]);
}

// ---- Launchers ---------------------------------------------------------------------------------------------------

template <int kDimension>
cudaError_t LimitVoxelsOf(const VoxelLimitParams& params, cudaStream_t stream) {
  const VoxelizeParams& voxels = params.voxels;
  const int64_t num_rows = voxels.num_points;
  const int32_t num_samples = voxels.num_samples;
  const unsigned num_blocks = NumBlocks(num_rows);
  Workspace workspace(params);
  PairBuffers<uint64_t>& pairs = workspace.pairs;
  const auto sort = [&](int num_bits) { return SortPairs(pairs, num_rows, num_bits, workspace.sort_scratch, stream); };

  const auto launch = [&](auto* kernel, unsigned blocks, const auto&... arguments) {
    return LaunchEarly(kernel, blocks, kBlockThreads, 0, stream, arguments...);
  };

  VOXSERVE_RETURN_IF_CUDA(launch(MeasureVoxelsKernel<kDimension>,
                                 NumBlocks(std::max<int64_t>(num_rows, num_samples + 1)), voxels, params.order,
                                 workspace));
  if (params.order == VoxelOrder::kFirstSeen) {
    VOXSERVE_RETURN_IF_CUDA(sort(static_cast<int>(std::bit_width(static_cast<uint64_t>(num_rows)))));
  } else {
    VOXSERVE_RETURN_IF_CUDA(sort(MortonKey<kDimension>::kBatchShift));
    VOXSERVE_RETURN_IF_CUDA(launch(TakeDistancesKernel, num_blocks, pairs.current_values(), num_rows,
                                   workspace.distances, pairs.current_keys()));
    VOXSERVE_RETURN_IF_CUDA(sort(kDistanceBits));
    if (num_samples > 1) {
      VOXSERVE_RETURN_IF_CUDA(launch(TakeSamplesKernel<kDimension>, num_blocks, pairs.current_values(), num_rows,
                                     workspace, num_samples, pairs.current_keys()));
      VOXSERVE_RETURN_IF_CUDA(sort(static_cast<int>(std::bit_width(static_cast<uint32_t>(num_samples)))));
    }
  }
  VOXSERVE_RETURN_IF_CUDA(launch(MarkFirstKernel<kDimension>, num_blocks, pairs.current_values(), num_rows, workspace,
                                 num_samples, params.max_voxels));
  const TileRuns runs(num_rows);
  VOXSERVE_RETURN_IF_CUDA(launch(CountKeptKernel, runs.num_runs, workspace, num_samples, runs.rows_a_run));
  VOXSERVE_RETURN_IF_CUDA(launch(CloseUpKernel, runs.num_runs, voxels, workspace, runs.rows_a_run));
  return launch(CountDroppedKernel, NumBlocks(num_samples + 1), params, workspace);
}

}  // namespace

size_t LimitVoxelsWorkspaceBytes(const VoxelLimitParams& params) {
  VoxelLimitParams measured = params;
  measured.workspace = nullptr;
  return Workspace(measured).bytes;
}

cudaError_t LimitVoxels(const VoxelLimitParams& params, cudaStream_t stream) {
  const NvtxRange range("LimitVoxels");
  const int32_t num_samples = params.voxels.num_samples;
  if (num_samples == 0) return cudaSuccess;
  if (params.voxels.num_points == 0) {
    const size_t bytes = static_cast<size_t>(num_samples) * sizeof(int64_t);
    VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(params.num_dropped_voxels, 0, bytes, stream));
    return cudaMemsetAsync(params.num_dropped_points, 0, bytes, stream);
  }
  return VisitDimension(params.voxels.dimension,
                        [&](auto dimension) { return LimitVoxelsOf<dimension>(params, stream); });
}

}  // namespace voxserve::kernels::cuda
