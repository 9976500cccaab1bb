#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/output_bitmap.cuh"
#include "kernels/coordinates/output_candidates.cuh"
#include "kernels/coordinates/output_coordinates.h"
#include "kernels/coordinates/sample_bounds.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/visit_dimension.cuh"

namespace voxserve::kernels::cuda {
namespace {

// The most blocks that look for heads (a head is the first of several equal keys). They are few enough for each block
// to add up the counts of the blocks before it.
constexpr int64_t kMaxHeadBlocks = 1024;

// The most levels that are computed from the same sorted keys at once.
constexpr int kMaxChain = 8;

// --- Candidates ------------------------------------------------------------------------------------------------------

// The bits of a key that the sort compares. In OutputExtent's box, the upper bits of the fields are the same in all
// keys. A compact key leaves these bits out, and its sample moves down.
struct CandidateBits {
  int batch_shift;
  int kept;        // low bits of the key that are kept
  uint64_t upper;  // the bits that are left out

  __device__ uint64_t Compact(uint64_t key) const {
    return (key >> batch_shift) << kept | (key & ((uint64_t{1} << kept) - 1));
  }
  __device__ uint64_t operator()(uint64_t compact) const {
    return (compact >> kept) << batch_shift | upper | (compact & ((uint64_t{1} << kept) - 1));
  }
};

// Each thread writes the compact key of one candidate, or kNoKey if the rule does not allow the candidate or there is
// no such input.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads)
    CandidatesKernel(const __grid_constant__ CandidateParams params, CandidateBits bits, uint64_t* candidates) {
  const uint32_t index = blockIdx.x * kBlockThreads + threadIdx.x;
  const auto candidates_an_input = static_cast<uint32_t>(params.candidates_an_input);
  const uint32_t row = index / candidates_an_input;
  if (row >= params.in_capacity) return;
  uint64_t candidate = kNoKey;
  if (row < NumRows(params.in_capacity, params.num_in)) {
    int32_t sample = 0;
    Axes sites = {0, 0, 0, 0};
    const auto number = static_cast<int32_t>(index - row * candidates_an_input);
    if (FindCandidate<kDimension>(params, params.in_keys[row], number, sample, sites)) {
      candidate = bits.Compact(MortonKey<kDimension>::Pack(sample, sites));
    }
  }
  candidates[index] = candidate;
}

// --- Unique keys -----------------------------------------------------------------------------------------------------

// Computes floor(coordinate / 2^log2_stride) on all axes of a MortonKey at once. Groups of one bit per axis move down,
// and the group of the signs is repeated above them. Keys that differ in the remaining groups keep their order.
struct MortonFloor {
  int dimension;
  int axis_bits;
  int log2_stride;  // below axis_bits

  __device__ uint64_t operator()(uint64_t key) const {
    const int batch_shift = dimension * axis_bits;
    const int top = batch_shift - dimension;
    const uint64_t group = (uint64_t{1} << dimension) - 1;
    const uint64_t signs = key >> top & group;  // 1: not negative
    uint64_t floored = key >> batch_shift << batch_shift | signs << top |
                       (key & ((uint64_t{1} << top) - 1)) >> (dimension * log2_stride);
    for (int i = 1; i <= log2_stride; ++i) floored |= (signs ^ group) << (top - dimension * i);
    return floored;
  }
};

// A level of outputs. The sorted keys that are equal apart from the ignored bits give one output.
template <typename Restore>
struct HeadLevel {
  int ignored_bits;  // low bits that do not count in comparisons; at least as many as in the level before
  Restore restore;
  uint64_t* out_keys;
  int32_t* first_in_rows;  // null: not wanted
  int64_t* num_out;
  int64_t* num_beyond_limits;  // [num_samples] set to 0; null: not touched
};

template <typename Restore>
struct HeadParams {
  const uint64_t* sorted;  // [capacity], kNoKey last
  int64_t capacity;
  const int64_t* num_sorted;  // null: capacity
  int64_t block_rows;         // rows per block, a multiple of kBlockThreads
  int32_t* block_heads;       // [num_levels, blocks]
  int32_t num_samples;
  int32_t num_levels;
  HeadLevel<Restore> levels[kMaxChain];
};

// Sums the values of all threads of a block, level by level. Every thread gets the sums. A kernel calls it once.
__device__ void SumLevels(int32_t (&values)[kMaxChain], int32_t num_levels) {
  __shared__ int32_t sums[kMaxChain][kBlockWarps];
#pragma unroll
  for (int level = 0; level < kMaxChain; ++level) {
    if (level >= num_levels) break;
    const int32_t sum = WarpSum(values[level]);
    if (threadIdx.x % kWarpThreads == 0) sums[level][threadIdx.x / kWarpThreads] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int level = 0; level < kMaxChain; ++level) {
    values[level] = 0;
    if (level >= num_levels) continue;
#pragma unroll
    for (int warp = 0; warp < kBlockWarps; ++warp) values[level] += sums[level][warp];
  }
}

// Returns the bits in which a key differs from the key before it. The key is a head in each level that does not ignore
// all of these bits. Returns all ones for the first key, 0 for kNoKey.
__device__ uint64_t Difference(const uint64_t* sorted, int64_t row) {
  const uint64_t key = sorted[row];
  if (key == kNoKey) return 0;
  return row == 0 ? ~uint64_t{0} : key ^ sorted[row - 1];
}

template <typename Restore>
__global__ void __launch_bounds__(kBlockThreads) CountHeadsKernel(const __grid_constant__ HeadParams<Restore> params) {
  WaitForEarlierKernels();
  const int64_t begin = blockIdx.x * params.block_rows;
  const int64_t end = min(begin + params.block_rows, NumRows(params.capacity, params.num_sorted));
  int32_t counts[kMaxChain] = {};
  for (int64_t row = begin + threadIdx.x; row < end; row += kBlockThreads) {
    const uint64_t difference = Difference(params.sorted, row);
#pragma unroll
    for (int level = 0; level < kMaxChain; ++level) {
      if (level < params.num_levels) counts[level] += difference >> params.levels[level].ignored_bits != 0 ? 1 : 0;
    }
  }
  SumLevels(counts, params.num_levels);
#pragma unroll
  for (int level = 0; level < kMaxChain; ++level) {
    if (level >= params.num_levels) break;
    if (threadIdx.x == 0) params.block_heads[int64_t{level} * gridDim.x + blockIdx.x] = counts[level];
    int64_t* const num_beyond_limits = params.levels[level].num_beyond_limits;
    if (blockIdx.x != 0 || num_beyond_limits == nullptr) continue;
    for (int32_t sample = threadIdx.x; sample < params.num_samples; sample += kBlockThreads) {
      num_beyond_limits[sample] = 0;
    }
  }
}

// Writes restore(key) of every head, level by level. The heads of a level are also heads of the level before, and their
// rows there are the first inputs of this level's outputs.
template <typename Restore>
__global__ void __launch_bounds__(kBlockThreads, BlocksAnSm(4))
    WriteHeadsKernel(const __grid_constant__ HeadParams<Restore> params) {
  const int64_t begin = blockIdx.x * params.block_rows;
  const int64_t end = min(begin + params.block_rows, NumRows(params.capacity, params.num_sorted));
  const bool is_last = blockIdx.x == gridDim.x - 1;
  int64_t row;
  uint64_t key, difference;
  const auto read = [&](int64_t first) {
    row = first + threadIdx.x;
    key = row < end ? params.sorted[row] : kNoKey;
    difference = row < end ? Difference(params.sorted, row) : 0;
  };
  read(begin);
  WaitForEarlierKernels();  // for CountHeadsKernel's counts
  if (begin >= end && !is_last) return;
  int32_t heads_before[kMaxChain];
#pragma unroll
  for (int level = 0; level < kMaxChain; ++level) {
    heads_before[level] = 0;
    if (level >= params.num_levels) continue;
    const int32_t* const block_heads = params.block_heads + int64_t{level} * gridDim.x;
    for (unsigned block = threadIdx.x; block < blockIdx.x; block += kBlockThreads) {
      heads_before[level] += block_heads[block];
    }
  }
  SumLevels(heads_before, params.num_levels);
  __shared__ int32_t heads_of_warps[kMaxChain][kBlockWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads, lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  for (int64_t first = begin; first < end; first += kBlockThreads) {
    if (first > begin) read(first);
    uint32_t heads[kMaxChain];  // of the warp
#pragma unroll
    for (int level = 0; level < kMaxChain; ++level) {
      if (level >= params.num_levels) break;
      heads[level] = __ballot_sync(~0u, difference >> params.levels[level].ignored_bits != 0);
      if (lane == 0) heads_of_warps[level][warp] = __popc(heads[level]);
    }
    __syncthreads();
    auto row_before = static_cast<int32_t>(row);  // in the level before; at first, in `sorted`
#pragma unroll
    for (int level = 0; level < kMaxChain; ++level) {
      if (level >= params.num_levels) break;
      const HeadLevel<Restore>& made = params.levels[level];
      int32_t out_row = heads_before[level] + __popc(heads[level] & ((1u << lane) - 1));
#pragma unroll
      for (int other = 0; other < kBlockWarps; ++other) {
        const int32_t count = heads_of_warps[level][other];
        heads_before[level] += count;
        if (other < warp) out_row += count;
      }
      if ((heads[level] >> lane & 1) == 0) continue;
      made.out_keys[out_row] = made.restore(key);
      if (made.first_in_rows != nullptr) made.first_in_rows[out_row] = row_before;
      row_before = out_row;
    }
    __syncthreads();  // before the next rows' heads
  }
  if (!is_last || threadIdx.x != 0) return;
#pragma unroll
  for (int level = 0; level < kMaxChain; ++level) {
    if (level < params.num_levels) *params.levels[level].num_out = heads_before[level];
  }
}

// --- Launchers -------------------------------------------------------------------------------------------------------

// Returns log2 of the stride if a division by it keeps Morton order, else -1.
int Log2OfMortonStride(const OutputCoordinatesParams& params) {
  if (!OutputsAreQuotients(params)) return -1;
  const ConvGeometry& geometry = params.geometry;
  const auto stride = static_cast<uint32_t>(geometry.stride[0]);
  for (int axis = 1; axis < geometry.dimension; ++axis) {
    if (geometry.stride[axis] != geometry.stride[0]) return -1;
  }
  const int log2_stride = std::countr_zero(stride);
  const bool survives = std::has_single_bit(stride) && log2_stride < CoordinateKey(geometry.dimension).axis_bits();
  return survives ? log2_stride : -1;
}

bool NeedsBounds(const OutputCoordinatesParams& params) {
  return params.rule == CoordinateRule::kExpand && !params.has_lower && !OutputsAreQuotients(params);
}

CandidateBits BitsOf(const OutputCoordinatesParams& params) {
  const CoordinateKey layout(params.geometry.dimension);
  CandidateBits bits = {.batch_shift = layout.batch_shift(), .kept = layout.batch_shift(), .upper = 0};
  const Axes extent = OutputExtent(params);
  if (extent[0] < 1) return bits;  // not known, or without sites
  int axis_bits = 0;
  for (int axis = 0; axis < layout.dimension(); ++axis) {
    const int64_t largest = std::clamp<int64_t>(int64_t{extent[axis]} - 1, 0, layout.max_coordinate());
    axis_bits = std::max<int>(axis_bits, std::bit_width(static_cast<uint64_t>(largest)));
  }
  bits.kept = axis_bits * layout.dimension();
  // In a field, a coordinate >= 0 has the bias's bit, which is the topmost, and its own bits.
  bits.upper = ((uint64_t{1} << layout.dimension()) - 1) << (layout.batch_shift() - layout.dimension());
  return bits;
}

// Returns the number of bits that the sort compares. They can hold a sample number above all samples', so that kNoKey
// is sorted last.
int NumSortedBits(const OutputCoordinatesParams& params) {
  const int sample_bits = std::bit_width(static_cast<uint32_t>(params.num_samples));
  return std::min(64, BitsOf(params).kept + sample_bits);
}

cudaError_t SortCandidates(const OutputCoordinatesParams& params, void* temp, size_t& temp_bytes,
                           cub::DoubleBuffer<uint64_t>& candidates, cudaStream_t stream) {
  return cub::DeviceRadixSort::SortKeys(temp, temp_bytes, candidates, NumOutputCandidates(params), 0,
                                        NumSortedBits(params), stream);
}

int32_t* TakeBlockHeads(WorkspaceCutter& cutter, size_t num_levels) {
  return cutter.Take<int32_t>(static_cast<int64_t>(num_levels) * kMaxHeadBlocks);
}

struct Workspace {
  int32_t* block_heads;
  FieldBounds* bounds = nullptr;
  BitmapWords bitmap;  // if it has words, used instead of all members below
  uint64_t* candidates[2] = {nullptr, nullptr};
  char* sort_temp = nullptr;
  size_t sort_temp_bytes = 0;
  size_t bytes;

  explicit Workspace(const OutputCoordinatesParams& params) {
    WorkspaceCutter cutter(params.workspace);
    block_heads = TakeBlockHeads(cutter, 1);
    if (NeedsBounds(params)) bounds = cutter.Take<FieldBounds>(params.num_samples);
    if (Log2OfMortonStride(params) < 0) TakeForCandidates(params, cutter);
    bytes = cutter.bytes();
  }

 private:
  // Takes the memory to put candidates into Morton order.
  void TakeForCandidates(const OutputCoordinatesParams& params, WorkspaceCutter& cutter) {
    if (const OutputBitmap layout(params); layout.is_worth_it()) {
      bitmap = layout.Take(cutter);
      return;
    }
    for (uint64_t*& buffer : candidates) buffer = cutter.Take<uint64_t>(NumOutputCandidates(params));
    cub::DoubleBuffer<uint64_t> buffers(candidates[0], candidates[1]);
    if (SortCandidates(params, nullptr, sort_temp_bytes, buffers, nullptr) != cudaSuccess) sort_temp_bytes = 0;
    sort_temp = cutter.Take<char>(static_cast<int64_t>(sort_temp_bytes));
  }
};

template <typename Restore>
cudaError_t WriteUnique(HeadParams<Restore> heads, cudaStream_t stream) {
  // The more blocks, the less a block has to do: one row a thread as long as kMaxHeadBlocks allows it.
  const auto num_steps = static_cast<int64_t>(NumBlocks(heads.capacity));
  heads.block_rows = (num_steps + kMaxHeadBlocks - 1) / kMaxHeadBlocks * kBlockThreads;
  const auto num_blocks = static_cast<unsigned>((heads.capacity + heads.block_rows - 1) / heads.block_rows);
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(CountHeadsKernel<Restore>, num_blocks, kBlockThreads, 0, stream, heads));
  return LaunchEarly(WriteHeadsKernel<Restore>, num_blocks, kBlockThreads, 0, stream, heads);
}

// Returns true if the levels of the chain match each other, and every level's capacity suffices for what the launches
// write to it.
bool LevelsFit(std::span<const OutputCoordinatesParams> chain) {
  const OutputCoordinatesParams& first = chain[0];
  for (size_t i = 0; i < chain.size(); ++i) {
    const OutputCoordinatesParams& params = chain[i];
    if (params.geometry.dimension != first.geometry.dimension || params.num_samples != first.num_samples ||
        params.out_capacity < std::max(first.num_in, OutputCoordinatesCapacity(params)) ||
        (i > 0 && params.num_in != chain[i - 1].out_capacity)) {
      return false;
    }
  }
  return true;
}

cudaError_t SetNoOutputs(const OutputCoordinatesParams& params, cudaStream_t stream) {
  const auto num_samples = static_cast<size_t>(params.num_samples);
  VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(params.num_beyond_limits, 0, num_samples * sizeof(int64_t), stream));
  return cudaMemsetAsync(params.num_out, 0, sizeof(int64_t), stream);
}

// Finds the bounds of each sample's inputs. bounds: [num_samples].
cudaError_t FindBounds(const OutputCoordinatesParams& params, FieldBounds* bounds, cudaStream_t stream) {
  const auto num_samples = static_cast<size_t>(params.num_samples);
  VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(bounds, 0xFF, num_samples * sizeof(FieldBounds), stream));
  return VisitDimension(params.geometry.dimension, [&](auto dimension) {
    SampleBoundsKernel<dimension()><<<NumBoundsBlocks(params.num_in), kBlockThreads, 0, stream>>>(
        params.in_keys, params.num_in, params.device_num_in, bounds);
    return LaunchStatus(stream);
  });
}

// Makes the outputs for rules that do not keep Morton order.
cudaError_t MakeOutputs(const OutputCoordinatesParams& params, cudaStream_t stream) {
  const Workspace workspace(params);
  if (workspace.bounds != nullptr) VOXSERVE_RETURN_IF_CUDA(FindBounds(params, workspace.bounds, stream));
  if (workspace.bitmap.words != nullptr) {
    return BitmapOutputs(params, workspace.bounds, workspace.bitmap, stream);
  }
  const auto num_samples = static_cast<size_t>(params.num_samples);
  VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(params.num_beyond_limits, 0, num_samples * sizeof(int64_t), stream));
  const CandidateParams candidates = CandidatesOf(params, workspace.bounds);
  const CandidateBits bits = BitsOf(params);
  const int64_t num_candidates = NumOutputCandidates(params);
  VOXSERVE_RETURN_IF_CUDA(VisitDimension(params.geometry.dimension, [&](auto dimension) {
    CandidatesKernel<dimension()>
        <<<NumBlocks(num_candidates), kBlockThreads, 0, stream>>>(candidates, bits, workspace.candidates[0]);
    return LaunchStatus(stream);
  }));
  cub::DoubleBuffer<uint64_t> sorted(workspace.candidates[0], workspace.candidates[1]);
  size_t sort_temp_bytes = workspace.sort_temp_bytes;
  VOXSERVE_RETURN_IF_CUDA(SortCandidates(params, workspace.sort_temp, sort_temp_bytes, sorted, stream));
  HeadParams<CandidateBits> heads{.sorted = sorted.Current(),
                                  .capacity = num_candidates,
                                  .num_sorted = nullptr,
                                  .block_rows = 0,
                                  .block_heads = workspace.block_heads,
                                  .num_samples = params.num_samples,
                                  .num_levels = 1,
                                  .levels = {}};
  heads.levels[0].restore = bits;
  heads.levels[0].out_keys = params.out_keys;
  heads.levels[0].num_out = params.num_out;
  return WriteUnique(heads, stream);
}

}  // namespace

bool CanBeChained(std::span<const OutputCoordinatesParams> chain) {
  int log2_stride = 0;
  for (const OutputCoordinatesParams& params : chain) {
    if (Log2OfMortonStride(params) < 0) return false;
    log2_stride += Log2OfMortonStride(params);
  }
  return chain.size() <= kMaxChain && log2_stride < CoordinateKey(chain[0].geometry.dimension).axis_bits();
}

size_t OutputCoordinatesChainWorkspaceBytes(std::span<const OutputCoordinatesParams> chain) {
  WorkspaceCutter cutter(nullptr);
  TakeBlockHeads(cutter, chain.size());
  return cutter.bytes();
}

cudaError_t OutputCoordinatesChain(std::span<const OutputCoordinatesParams> chain, cudaStream_t stream) {
  if (chain.empty()) return cudaSuccess;
  const NvtxRange range("OutputCoordinatesChain");
  const OutputCoordinatesParams& first = chain[0];
  if (!CanBeChained(chain) || !LevelsFit(chain)) return cudaErrorInvalidValue;
  const CoordinateKey layout(first.geometry.dimension);
  WorkspaceCutter cutter(first.workspace);
  HeadParams<MortonFloor> heads{.sorted = first.in_keys,
                                .capacity = first.num_in,
                                .num_sorted = first.device_num_in,
                                .block_rows = 0,
                                .block_heads = TakeBlockHeads(cutter, chain.size()),
                                .num_samples = first.num_samples,
                                .num_levels = static_cast<int32_t>(chain.size()),
                                .levels = {}};
  int log2_stride = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    const OutputCoordinatesParams& params = chain[i];
    log2_stride += Log2OfMortonStride(params);
    heads.levels[i] = {.ignored_bits = layout.dimension() * log2_stride,
                       .restore = {layout.dimension(), layout.axis_bits(), log2_stride},
                       .out_keys = params.out_keys,
                       .first_in_rows = params.first_in_rows,
                       .num_out = params.num_out,
                       .num_beyond_limits = params.num_beyond_limits};
    if (first.num_in > 0) continue;
    VOXSERVE_RETURN_IF_CUDA(SetNoOutputs(params, stream));
  }
  return first.num_in == 0 ? cudaSuccess : WriteUnique(heads, stream);
}

size_t OutputCoordinatesWorkspaceBytes(const OutputCoordinatesParams& params) {
  return params.num_in == 0 ? 0 : Workspace(params).bytes;
}

cudaError_t OutputCoordinates(const OutputCoordinatesParams& params, cudaStream_t stream) {
  if (CanBeChained({&params, 1})) return OutputCoordinatesChain({&params, 1}, stream);
  const NvtxRange range("OutputCoordinates");
  if (params.out_capacity < OutputCoordinatesCapacity(params)) return cudaErrorInvalidValue;
  if (params.num_in == 0) return SetNoOutputs(params, stream);
  return MakeOutputs(params, stream);
}

}  // namespace voxserve::kernels::cuda
