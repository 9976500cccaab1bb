#include <atomic>
#include <cassert>

#include "kernels/boxes/center_head.h"
#include "kernels/boxes/center_head_cell.h"

namespace voxserve::kernels::cpu {

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
      WriteBestBoxes(
          keys, head.max_boxes,
          [&](uint64_t key, float(&box)[kBoxColumns]) {
            return DecodeCenterBox(head, CellOfCandidate(head, params.site_of, sample, IndexOfKey(key)),
                                   LogitOfKey(key), load, box);
          },
          head.boxes + int64_t{sample} * head.max_boxes * kBoxPitch, &num_not_finite);
      if (params.num_not_finite != nullptr) std::atomic_ref(params.num_not_finite[sample]).fetch_add(num_not_finite);
    }
  });
}

}  // namespace voxserve::kernels::cpu
