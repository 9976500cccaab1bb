#include <algorithm>
#include <atomic>
#include <cassert>
#include <functional>

#include "kernels/boxes/center_head.h"
#include "kernels/boxes/center_head_cell.h"

namespace voxserve::kernels::cpu {
namespace {

// Replaces the keys of a head with IoUs by those of its boxes, whose logits are their scores. decode and num_not_finite
// are as WriteBestBoxes has them.
template <typename Decode>
void TakeScores(ScratchVector<uint64_t>& keys, int32_t max_boxes, const Decode& decode, uint32_t* num_not_finite) {
  const int64_t num_best = std::min(static_cast<int64_t>(keys.size()), int64_t{max_boxes});
  std::partial_sort(keys.begin(), keys.begin() + num_best, keys.end(), std::greater<>());
  size_t num_boxes = 0;
  for (int64_t i = 0; i < num_best; ++i) {
    const uint64_t key = keys[static_cast<size_t>(i)];
    float box[kBoxColumns] = {};
    const CandidateFate fate = decode(key, box);
    if (fate == CandidateFate::kNotFinite) ++*num_not_finite;
    if (fate == CandidateFate::kBox) keys[num_boxes++] = CandidateKey(box[kBoxScore], IndexOfKey(key));
  }
  keys.resize(num_boxes);
}

}  // namespace

void DecodeCenterHeads(const CenterHeadParams& params, ThreadPool& pool, std::pmr::memory_resource* memory) {
  assert(params.dtype == DType::kFloat32);
  const auto load = [](const ImageChannels& image, int64_t row, int32_t channel) {
    return static_cast<const float*>(image.data)[row * image.pitch + channel];
  };
  pool.ParallelFor(int64_t{params.num_samples} * params.num_heads, 1, [&](int64_t begin, int64_t end) {
    ScratchVector<uint64_t> keys(memory);
    for (int64_t i = begin; i < end; ++i) {
      const CenterHead& head = params.heads[static_cast<size_t>(i % params.num_heads)];
      const auto sample = static_cast<int32_t>(i / params.num_heads);
      const float lowest_logit = LowestLogit(head.score_threshold, /*is_strict=*/true);
      uint32_t num_not_finite = 0;
      keys.clear();
      for (int32_t cell = 0; cell < head.num_rows * head.num_columns; ++cell) {
        FindCenterCandidates(
            head, params.site_of, lowest_logit, sample, cell, load,
            [&](float logit, uint32_t index) { keys.push_back(CandidateKey(logit, index)); },
            [&] { ++num_not_finite; });
      }
      const auto decode = [&](uint64_t key, float(&box)[kBoxColumns]) {
        const CenterHeadCell cell = CellOfCandidate(head, params.site_of, sample, IndexOfKey(key));
        return DecodeCenterBox(head, cell, LogitAt(head, cell, load), load, box);
      };
      if (head.iou.data != nullptr) TakeScores(keys, head.max_boxes, decode, &num_not_finite);
      WriteBestBoxes(keys, head.max_boxes, decode, head.boxes + int64_t{sample} * head.max_boxes * kBoxPitch,
                     &num_not_finite);
      if (params.num_not_finite != nullptr) std::atomic_ref(params.num_not_finite[sample]).fetch_add(num_not_finite);
    }
  });
}

}  // namespace voxserve::kernels::cpu
