#include "kernels/boxes/box_candidates.cuh"
#include "kernels/boxes/pair_fate.h"
#include "kernels/boxes/select_peaks.h"

namespace voxserve::kernels::cuda {
namespace {

struct Workspace {
  // A threshold of 0 is that of no logit; the lists' bins then begin at -8.
  Workspace(const SelectPeaksParams& params, WorkspaceCutter cutter)
      : counters(cutter, /*num_heads=*/1, params.num_samples),
        lists(cutter, counters.values, params.num_samples, NumPairs(params), /*item_candidates=*/1,
              LowestLogit(/*score_threshold=*/0, /*is_strict=*/false)),
        bytes(cutter.bytes()) {}

  CandidateCounters counters;
  CandidateLists lists;
  size_t bytes;
};

// The parameter of the kernels of box_candidates.cuh. An item is a pair, numbered cell * classes + class:
// neighbouring threads then read neighbouring values.
template <typename T>
struct PeakMaps {
  int32_t num_heads, num_samples;
  SelectPeaksParams params;
  CandidateLists lists;
  uint32_t* num_not_finite;

  __device__ const CandidateLists& Lists(int) const { return lists; }
  __device__ int32_t NumItems(int) const { return NumPairs(params); }
  __device__ int32_t MaxBoxes(int) const { return params.k; }
  template <typename Emit, typename Drop>
  __device__ void Find(int, int32_t sample, int32_t item, const Emit& emit, const Drop& drop) const {
    const int32_t cell = item / params.num_classes, channel = item % params.num_classes;
    float logit;
    const PairFate fate = TestPair(params, sample, channel, cell, LoadAs<T>(), &logit);
    if (fate == PairFate::kPeak) emit(logit, static_cast<uint32_t>(channel * NumCells(params) + cell));
    if (fate == PairFate::kNotFinite) drop();
  }
};

// Writes the rows [num_rows, k) of a sample: pairs of this fate in the order of (class, cell), with the score 0.
// Returns the number of rows that are then written. All threads of the block must call it.
template <typename T>
__device__ int32_t FillRows(const SelectPeaksParams& params, int32_t sample, PairFate wanted, int32_t num_rows,
                            float* rows, SelectShared& shared) {
  const int32_t num_cells = NumCells(params), num_pairs = NumPairs(params);
  for (int64_t first = 0; first < num_pairs && num_rows < params.k; first += kSelectThreads) {
    const int64_t index = first + threadIdx.x;
    bool is_wanted = false;
    if (index < num_pairs) {
      float logit;
      is_wanted = TestPair(params, sample, static_cast<int32_t>(index / num_cells),
                           static_cast<int32_t>(index % num_cells), LoadAs<T>(), &logit) == wanted;
    }
    int32_t more;
    const int32_t place = num_rows + InclusiveSum(is_wanted ? 1 : 0, shared, &more) - 1;
    if (is_wanted && place < params.k) {
      WriteSelected(params, static_cast<uint32_t>(index), /*score=*/0, rows + place * kSelectionColumns);
    }
    num_rows += more;
  }
  return num_rows;
}

// A block writes the selection of one sample.
template <typename T>
__global__ void __launch_bounds__(kSelectThreads) SelectPeaksKernel(const __grid_constant__ PeakMaps<T> maps) {
  static_assert(kMaxQueries <= kSelectThreads);
  __shared__ SelectShared shared;
  WaitForEarlierKernels();
  const auto sample = static_cast<int32_t>(blockIdx.x), thread = static_cast<int32_t>(threadIdx.x);
  const SelectPeaksParams& params = maps.params;
  float* const rows = params.selection + int64_t{sample} * params.k * kSelectionColumns;
  const int32_t num_best = min(SortBestKeys(maps.lists, sample, params.k, shared), params.k);
  if (thread < num_best) {
    const uint64_t key = shared.keys[thread];
    WriteSelected(params, IndexOfKey(key), ScoreOf(LogitOfKey(key)), rows + thread * kSelectionColumns);
  }
  const int32_t num_rows = FillRows<T>(params, sample, PairFate::kNoPeak, num_best, rows, shared);
  FillRows<T>(params, sample, PairFate::kNotFinite, num_rows, rows, shared);
}

}  // namespace

size_t SelectPeaksWorkspaceBytes(const SelectPeaksParams& params) {
  return Workspace(params, WorkspaceCutter(nullptr)).bytes;
}

cudaError_t SelectPeaks(const SelectPeaksParams& params, cudaStream_t stream) {
  if (params.num_samples == 0) return cudaSuccess;
  const NvtxRange range("SelectPeaks");
  return VisitFeatureType(params.dtype, [&](auto value) {
    using T = decltype(value);
    const Workspace workspace(params, WorkspaceCutter(params.workspace));
    const PeakMaps<T> maps{.num_heads = 1,
                           .num_samples = params.num_samples,
                           .params = params,
                           .lists = workspace.lists,
                           .num_not_finite = params.num_not_finite};
    VOXSERVE_RETURN_IF_CUDA(GatherCandidates(maps, workspace.counters, maps.lists.num_lists, stream));
    return LaunchEarly(SelectPeaksKernel<T>, static_cast<unsigned>(params.num_samples), kSelectThreads, 0, stream,
                       maps);
  });
}

}  // namespace voxserve::kernels::cuda
