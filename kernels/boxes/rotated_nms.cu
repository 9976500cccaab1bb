#include <algorithm>

#include "kernels/boxes/box_overlap.h"
#include "kernels/boxes/rotated_nms.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"

// Rotated non-maximum suppression on a GPU (rotated_nms.h) runs three kernels one after the other. Boxes come best
// first, so a better box is one with a smaller index. A box's index is its row in the input or, with classes, its place
// among the boxes of its class, which another kernel lists first (ListClassesKernel).
// - OverlapsKernel finds, for all boxes at once, the better boxes that each box overlaps by more than the IoU
//   threshold. Each pair of boxes is one bit. A block computes the bits of 16 x 64 pairs.
// - SweepKernel has one block per list and sample. The block goes through 64 boxes at a time. It removes the boxes
//   that overlap a box that it has kept before, and then decides among the remaining ones of the 64 (SettleTile).
// - CopyKeptKernel copies the rows of the kept boxes to the result.

namespace voxserve::kernels::cuda {
namespace {

constexpr int kTileBoxes = 64;
// A block of OverlapsKernel has this many of a tile's worse boxes. A network has some hundred boxes, so that blocks of
// whole tiles would leave most multiprocessors idle.
constexpr int kWorseBoxes = 16;
constexpr int kTileBlocks = kTileBoxes / kWorseBoxes;
constexpr int kBlockPairs = kWorseBoxes * kTileBoxes;
constexpr int kMaxWords = kMaxBoxes / kTileBoxes;
constexpr int kSweepThreads = 1024;
constexpr int kBoxThreads = kSweepThreads / kTileBoxes;  // threads that check one box's words
constexpr int kThreadWords = kMaxWords / kBoxThreads;
static_assert(kBoxThreads * 2 == kWarpThreads, "a warp has two boxes, half a ballot each");

struct ListState {
  NmsList list;
  int32_t num_words;   // words of one box in `overlaps`
  int32_t first_kept;  // where the list's entries begin among a sample's entries in Lists::kept
  uint64_t* overlaps;  // [num_samples, num_read, num_words] bit j of box i: i overlaps the better box j
  // With classes:
  int32_t* rows;      // [num_samples, num_read] the rows of the class's boxes in the input
  int32_t* num_rows;  // [num_samples] their number
};

struct Lists {
  explicit Lists(const RotatedNmsParams& params) : num_rows(NmsRows(params)) {
    WorkspaceCutter cutter(params.workspace);
    int32_t first_kept = 0;
    const bool has_classes = params.num_classes > 0;
    num_lists = NumNmsLists(params);
    for (int32_t i = 0; i < num_lists; ++i) {
      const NmsList list = NmsListAt(params, i);
      const int32_t num_words = (list.num_read + kTileBoxes - 1) / kTileBoxes;
      const int64_t num_read = int64_t{params.num_samples} * list.num_read;
      lists[i] = {.list = list,
                  .num_words = num_words,
                  .first_kept = first_kept,
                  .overlaps = cutter.Take<uint64_t>(num_read * num_words),
                  .rows = has_classes ? cutter.Take<int32_t>(num_read) : nullptr,
                  .num_rows = has_classes ? cutter.Take<int32_t>(params.num_samples) : nullptr};
      first_kept += list.num_kept;
      most_words = std::max(most_words, num_words);
    }
    kept = cutter.Take<int32_t>(int64_t{params.num_samples} * num_rows);
    counts = cutter.Take<int32_t>(int64_t{params.num_samples} * num_lists);
    bytes = cutter.bytes();
  }

  ListState lists[kMaxNmsInputs];
  int32_t num_lists;
  int32_t num_rows;        // rows of one sample's result
  int32_t* kept;           // [num_samples, num_rows] the indices of each list's boxes that are kept
  int32_t* counts;         // [num_samples, num_lists] the number of kept boxes
  int32_t most_words = 0;  // the largest num_words of all lists
  size_t bytes;
};

__device__ const float* RowsOf(const RotatedNmsParams& params, int input, int32_t sample) {
  return params.inputs[input].boxes + int64_t{sample} * params.inputs[input].max_boxes * kBoxPitch;
}

// The boxes of a list and sample.
struct ListBoxes {
  __device__ ListBoxes(const RotatedNmsParams& params, const ListState& state, int32_t sample)
      : all_rows(RowsOf(params, state.list.input, sample)),
        rows(state.rows == nullptr ? nullptr : state.rows + int64_t{sample} * state.list.num_read),
        num_rows(rows == nullptr ? state.list.num_read : state.num_rows[sample]) {}

  // Returns the columns of box `index`; null: there is none of this index. Without classes it may have no box.
  __device__ const float* At(int32_t index) const {
    if (index >= num_rows) return nullptr;
    return all_rows + int64_t{rows == nullptr ? index : rows[index]} * kBoxPitch;
  }
  __device__ bool HasBox(int32_t index) const {
    const float* const box = At(index);
    return box != nullptr && box[kBoxScore] != kNoBox;
  }

  const float* all_rows;
  const int32_t* rows;
  int32_t num_rows;
};

// Returns row and column of the tile with this index among those on and below the diagonal, counted row after row.
__device__ void TileOf(int32_t index, int32_t* row, int32_t* column) {
  auto r = static_cast<int32_t>((sqrtf(8.0f * static_cast<float>(index) + 1.0f) - 1.0f) * 0.5f);
  while (r * (r + 1) / 2 > index) --r;
  while ((r + 1) * (r + 2) / 2 <= index) ++r;
  *row = r;
  *column = index - r * (r + 1) / 2;
}

// ---- Kernels -----------------------------------------------------------------------------------------------------

// A block lists the rows of a class's boxes, in their order: (list, sample).
__global__ void __launch_bounds__(kSweepThreads)
    ListClassesKernel(const __grid_constant__ RotatedNmsParams params, const __grid_constant__ Lists lists) {
  __shared__ int32_t of_warp[kSweepThreads / kWarpThreads];
  WaitForEarlierKernels();
  const auto thread = static_cast<int32_t>(threadIdx.x), lane = thread % kWarpThreads, warp = thread / kWarpThreads;
  const auto sample = static_cast<int32_t>(blockIdx.y);
  const ListState& state = lists.lists[blockIdx.x];
  const float* const rows = RowsOf(params, state.list.input, sample);
  int32_t* const listed = state.rows + int64_t{sample} * state.list.num_read;
  const int32_t max_boxes = params.inputs[state.list.input].max_boxes;
  int32_t count = 0;
  for (int32_t first = 0; first < max_boxes && count < state.list.num_read; first += kSweepThreads) {
    const int32_t row = first + thread;
    const float* const box = rows + int64_t{row} * kBoxPitch;
    const bool is_of_class =
        row < max_boxes && box[kBoxScore] != kNoBox && box[kBoxClass] == static_cast<float>(state.list.class_id);
    const unsigned of_lanes = __ballot_sync(~0u, is_of_class);
    if (lane == 0) of_warp[warp] = __popc(of_lanes);
    __syncthreads();
    int32_t before = count + __popc(of_lanes & ((1u << lane) - 1)), more = 0;
    for (int32_t w = 0; w < kSweepThreads / kWarpThreads; ++w) {
      if (w < warp) before += of_warp[w];
      more += of_warp[w];
    }
    if (is_of_class && before < state.list.num_read) listed[before] = row;
    count += more;
    __syncthreads();
  }
  if (thread == 0) state.num_rows[sample] = min(count, state.list.num_read);
}

// A block handles 16 worse boxes of a tile of 64 x 64 pairs: (tile and part, list, sample). It first queues the pairs
// of boxes whose enclosing circles meet. All threads then share the exact computation of the queued pairs.
__global__ void __launch_bounds__(kBlockThreads)
    OverlapsKernel(const __grid_constant__ RotatedNmsParams params, const __grid_constant__ Lists lists) {
  constexpr int kBoxes = kWorseBoxes + kTileBoxes;
  __shared__ float boxes[kBoxes][kBoxColumns];  // the worse boxes, then the better ones
  __shared__ float radii[kBoxes];
  __shared__ unsigned long long words[kWorseBoxes];
  __shared__ uint16_t queue[kBlockPairs];
  __shared__ int32_t num_queued;
  WaitForEarlierKernels();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto sample = static_cast<int32_t>(blockIdx.z);
  const ListState& state = lists.lists[blockIdx.y];
  int32_t tile_row, tile_column;
  const auto block = static_cast<int32_t>(blockIdx.x);
  TileOf(block / kTileBlocks, &tile_row, &tile_column);
  if (tile_row >= state.num_words) return;
  const int32_t first_worse = tile_row * kTileBoxes + block % kTileBlocks * kWorseBoxes;
  const int32_t first_better = tile_column * kTileBoxes;
  const ListBoxes of_list(params, state, sample);
  if (!of_list.HasBox(first_worse)) return;

  for (int32_t i = thread; i < kBoxes * kBoxColumns; i += kBlockThreads) {
    const int32_t at = i / kBoxColumns, column = i % kBoxColumns;
    const float* const box = of_list.At(at < kWorseBoxes ? first_worse + at : first_better + at - kWorseBoxes);
    boxes[at][column] = box != nullptr ? box[column] : ValueOfNoBox(column);
  }
  if (thread < kWorseBoxes) words[thread] = 0;
  if (thread == 0) num_queued = 0;
  __syncthreads();
  if (thread < kBoxes) radii[thread] = RadiusFromAbove(boxes[thread]);
  __syncthreads();

  for (int32_t pair = thread; pair < kBlockPairs; pair += kBlockThreads) {
    const int32_t worse = pair / kTileBoxes, better = pair % kTileBoxes, at = kWorseBoxes + better;
    const bool is_pair = first_better + better < first_worse + worse && boxes[worse][kBoxScore] != kNoBox;
    if (is_pair && MayOverlap(boxes[at], radii[at], boxes[worse], radii[worse])) {
      queue[atomicAdd(&num_queued, 1)] = static_cast<uint16_t>(pair);
    }
  }
  __syncthreads();
  for (int32_t i = thread; i < num_queued; i += kBlockThreads) {
    const int32_t worse = queue[i] / kTileBoxes, better = queue[i] % kTileBoxes;
    if (IouFromAbove(boxes[kWorseBoxes + better], boxes[worse]) > state.list.iou_threshold) {
      atomicOr(&words[worse], 1ull << better);
    }
  }
  __syncthreads();
  if (thread < kWorseBoxes && first_worse + thread < state.list.num_read) {
    const int64_t row = int64_t{sample} * state.list.num_read + first_worse + thread;
    state.overlaps[row * state.num_words + tile_column] = words[thread];
  }
}

// Decides in rounds which of 64 boxes are kept. A box that overlaps a better kept box is removed. A box is kept if all
// better boxes that it overlaps are removed. So each round decides at least the best undecided box. Lane l passes the
// overlaps of boxes l and l + 32 with the better boxes of the 64. Returns the kept boxes as bits. All lanes of a warp
// call it.
__device__ uint64_t SettleTile(const uint64_t (&overlaps)[2], uint64_t undecided) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  uint64_t kept = 0;
  while (undecided != 0) {
    bool stays[2], goes[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool is_undecided = (undecided >> (half * kWarpThreads + lane) & 1) != 0;
      goes[half] = is_undecided && (overlaps[half] & kept) != 0;
      stays[half] = is_undecided && (overlaps[half] & (kept | undecided)) == 0;
    }
    const uint64_t more = uint64_t{__ballot_sync(~0u, stays[1])} << kWarpThreads | __ballot_sync(~0u, stays[0]);
    const uint64_t gone = uint64_t{__ballot_sync(~0u, goes[1])} << kWarpThreads | __ballot_sync(~0u, goes[0]);
    kept |= more;
    undecided &= ~(more | gone);
  }
  return kept;
}

// A block handles one (list, sample). Half a warp checks a box while the words of the next boxes are loaded.
__global__ void __launch_bounds__(kSweepThreads)
    SweepKernel(const __grid_constant__ RotatedNmsParams params, const __grid_constant__ Lists lists) {
  __shared__ uint64_t kept[kMaxWords];
  __shared__ uint8_t is_gone[kTileBoxes];
  __shared__ int32_t num_kept;
  WaitForEarlierKernels();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kWarpThreads, warp = thread / kWarpThreads;
  const auto sample = static_cast<int32_t>(blockIdx.y);
  const ListState& state = lists.lists[blockIdx.x];
  const ListBoxes boxes(params, state, sample);
  const int32_t num_read = state.list.num_read, max_kept = state.list.num_kept;
  const uint64_t* const overlaps = state.overlaps + int64_t{sample} * num_read * state.num_words;

  int32_t num_boxes = 0;
  for (int32_t first = 0; first < num_read; first += kSweepThreads) {
    num_boxes += __syncthreads_count(boxes.HasBox(first + thread));
  }
  if (thread == 0) num_kept = 0;

  const int32_t box = thread / kBoxThreads, box_lane = thread % kBoxThreads;
  const auto word_of = [&](int32_t row, int32_t word) {
    return row < num_boxes ? overlaps[int64_t{row} * state.num_words + word] : uint64_t{0};
  };
  // The overlaps of the next tile's boxes: `words` with boxes of better tiles, `own` with boxes of the same tile (only
  // the first warp has these).
  uint64_t words[kThreadWords] = {}, own[2] = {};
  const auto load_tile = [&](int32_t tile) {
#pragma unroll
    for (int k = 0; k < kThreadWords; ++k) {
      const int32_t word = k * kBoxThreads + box_lane;
      words[k] = word < tile ? word_of(tile * kTileBoxes + box, word) : 0;
    }
    if (warp == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) own[half] = word_of(tile * kTileBoxes + half * kWarpThreads + lane, tile);
    }
  };
  load_tile(0);
  __syncthreads();
  for (int32_t tile = 0; tile * kTileBoxes < num_boxes; ++tile) {
    bool overlaps_kept = false;
#pragma unroll
    for (int k = 0; k < kThreadWords; ++k) {
      const int32_t word = k * kBoxThreads + box_lane;
      if (word < tile) overlaps_kept = overlaps_kept || (words[k] & kept[word]) != 0;
    }
    const unsigned votes = __ballot_sync(~0u, overlaps_kept) >> (lane / kBoxThreads * kBoxThreads);
    if (box_lane == 0) is_gone[box] = (votes & ((1u << kBoxThreads) - 1)) != 0 ? 1 : 0;
    const uint64_t within[2] = {own[0], own[1]};
    if ((tile + 1) * kTileBoxes < num_boxes) load_tile(tile + 1);
    __syncthreads();
    if (warp == 0) {
      const int32_t before = num_kept;
      const auto is_candidate = [&](int32_t i) { return tile * kTileBoxes + i < num_boxes && is_gone[i] == 0; };
      const uint64_t undecided = uint64_t{__ballot_sync(~0u, is_candidate(kWarpThreads + lane))} << kWarpThreads |
                                 __ballot_sync(~0u, is_candidate(lane));
      const uint64_t stay = SettleTile(within, undecided);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t i = half * kWarpThreads + lane;
        const int32_t place = before + __popcll(stay & ((uint64_t{1} << i) - 1));
        if ((stay >> i & 1) != 0 && place < max_kept) {
          lists.kept[int64_t{sample} * lists.num_rows + state.first_kept + place] = tile * kTileBoxes + i;
        }
      }
      __syncwarp();  // all lanes have read num_kept
      if (lane == 0) {
        kept[tile] = stay;
        num_kept = min(before + __popcll(stay), max_kept);
      }
    }
    __syncthreads();
    if (num_kept == max_kept) break;
  }
  if (thread == 0) lists.counts[int64_t{sample} * lists.num_lists + blockIdx.x] = num_kept;
}

// A thread copies one value of a sample's result: (value, sample).
__global__ void __launch_bounds__(kBlockThreads)
    CopyKeptKernel(const __grid_constant__ RotatedNmsParams params, const __grid_constant__ Lists lists) {
  WaitForEarlierKernels();
  const int32_t i = static_cast<int32_t>(blockIdx.x) * kBlockThreads + static_cast<int32_t>(threadIdx.x);
  const auto sample = static_cast<int32_t>(blockIdx.y);
  if (i >= lists.num_rows * kBoxPitch) return;
  const int32_t row = i / kBoxPitch, column = i % kBoxPitch;
  float value = ValueOfNoBox(column);
  int32_t place = row;
  for (int32_t list = 0; list < lists.num_lists; ++list) {
    const int32_t count = lists.counts[int64_t{sample} * lists.num_lists + list];
    if (place < count) {
      const ListState& state = lists.lists[list];
      const int32_t kept = lists.kept[int64_t{sample} * lists.num_rows + state.first_kept + place];
      value = ListBoxes(params, state, sample).At(kept)[column];
      break;
    }
    place -= count;
  }
  params.boxes[(int64_t{sample} * lists.num_rows + row) * kBoxPitch + column] = value;
}

}  // namespace

size_t RotatedNmsWorkspaceBytes(const RotatedNmsParams& params) {
  RotatedNmsParams measured = params;
  measured.workspace = nullptr;
  return Lists(measured).bytes;
}

cudaError_t RotatedNms(const RotatedNmsParams& params, cudaStream_t stream) {
  if (params.num_samples == 0 || params.num_inputs == 0) return cudaSuccess;
  const NvtxRange range("RotatedNms");
  const Lists lists(params);
  static_assert(sizeof(RotatedNmsParams) + sizeof(Lists) <= kMaxParamBytes);
  const auto num_lists = static_cast<unsigned>(lists.num_lists),
             num_samples = static_cast<unsigned>(params.num_samples);
  const dim3 a_list_each(num_lists, num_samples);
  if (params.num_classes > 0) {
    VOXSERVE_RETURN_IF_CUDA(LaunchEarly(ListClassesKernel, a_list_each, kSweepThreads, 0, stream, params, lists));
  }
  const auto num_tiles = static_cast<unsigned>(lists.most_words * (lists.most_words + 1) / 2);
  const dim3 tile_blocks(num_tiles * kTileBlocks, num_lists, num_samples);
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(OverlapsKernel, tile_blocks, kBlockThreads, 0, stream, params, lists));
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(SweepKernel, a_list_each, kSweepThreads, 0, stream, params, lists));
  const dim3 copy_blocks(NumBlocks(int64_t{lists.num_rows} * kBoxPitch), num_samples);
  return LaunchEarly(CopyKeptKernel, copy_blocks, kBlockThreads, 0, stream, params, lists);
}

}  // namespace voxserve::kernels::cuda
