#include <algorithm>
#include <atomic>
#include <cassert>
#include <functional>

#include "kernels/boxes/pair_fate.h"
#include "kernels/boxes/select_peaks.h"

namespace voxserve::kernels::cpu {
namespace {

float LoadLogit(const ImageChannels& image, int64_t row, int32_t channel) {
  return static_cast<const float*>(image.data)[row * image.pitch + channel];
}

// Calls visit(index, fate, logit) for the pairs of a sample in the order of (class, cell), as long as it returns true.
template <typename Visit>
void VisitPairs(const SelectPeaksParams& params, int32_t sample, const Visit& visit) {
  uint32_t index = 0;
  for (int32_t channel = 0; channel < params.num_classes; ++channel) {
    for (int32_t cell = 0; cell < NumCells(params); ++cell) {
      float logit = 0;
      const PairFate fate = TestPair(params, sample, channel, cell, LoadLogit, &logit);
      if (!visit(index++, fate, logit)) return;
    }
  }
}

}  // namespace

void SelectPeaks(const SelectPeaksParams& params, ThreadPool& pool, std::pmr::memory_resource* memory) {
  assert(params.dtype == DType::kFloat32);
  pool.ParallelFor(params.num_samples, 1, [&](int64_t begin, int64_t end) {
    ScratchVector<uint64_t> keys(memory);
    for (auto sample = static_cast<int32_t>(begin); sample < end; ++sample) {
      uint32_t num_not_finite = 0;
      keys.clear();
      VisitPairs(params, sample, [&](uint32_t index, PairFate fate, float logit) {
        if (fate == PairFate::kPeak) keys.push_back(CandidateKey(logit, index));
        if (fate == PairFate::kNotFinite) ++num_not_finite;
        return true;
      });
      const int64_t num_best = std::min(static_cast<int64_t>(keys.size()), int64_t{params.k});
      std::partial_sort(keys.begin(), keys.begin() + num_best, keys.end(), std::greater<>());
      float* row = params.selection + int64_t{sample} * params.k * kSelectionColumns;
      float* const rows_end = row + int64_t{params.k} * kSelectionColumns;
      for (int64_t i = 0; i < num_best; ++i, row += kSelectionColumns) {
        const uint64_t key = keys[static_cast<size_t>(i)];
        WriteSelected(params, IndexOfKey(key), ScoreOf(LogitOfKey(key)), row);
      }
      for (const PairFate wanted : {PairFate::kNoPeak, PairFate::kNotFinite}) {
        if (row == rows_end) break;
        VisitPairs(params, sample, [&](uint32_t index, PairFate fate, float) {
          if (fate != wanted) return true;
          WriteSelected(params, index, /*score=*/0, row);
          row += kSelectionColumns;
          return row < rows_end;
        });
      }
      if (params.num_not_finite != nullptr) std::atomic_ref(params.num_not_finite[sample]).fetch_add(num_not_finite);
    }
  });
}

}  // namespace voxserve::kernels::cpu
