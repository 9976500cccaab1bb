#include <cassert>

#include "kernels/boxes/anchor_head.h"
#include "kernels/boxes/anchor_head_cell.h"

namespace voxserve::kernels::cpu {

void DecodeAnchorHead(const AnchorHeadParams& params, ThreadPool& pool, std::pmr::memory_resource* memory) {
  assert(params.dtype == DType::kFloat32);
  const auto load = [](const ImageChannels& image, int64_t row, int32_t channel) {
    return static_cast<const float*>(image.data)[row * image.pitch + channel];
  };
  const float lowest_logit = LowestLogit(params.score_threshold, /*is_strict=*/false);
  pool.ParallelFor(params.num_samples, 1, [&](int64_t begin, int64_t end) {
    ScratchVector<uint64_t> keys(memory);
    for (auto sample = static_cast<int32_t>(begin); sample < end; ++sample) {
      uint32_t num_not_finite = 0;
      keys.clear();
      for (int32_t item = 0; item < params.num_rows * params.num_columns * params.num_anchors; ++item) {
        FindAnchorCandidate(
            params, lowest_logit, sample, item, load,
            [&](float logit, uint32_t index) { keys.push_back(CandidateKey(logit, index)); },
            [&] { ++num_not_finite; });
      }
      WriteBestBoxes(
          keys, params.max_boxes,
          [&](uint64_t key, float(&box)[kBoxColumns]) {
            return DecodeAnchorBox(params, sample, LogitOfKey(key), IndexOfKey(key), load, box);
          },
          params.boxes + int64_t{sample} * params.max_boxes * kBoxPitch, &num_not_finite);
      if (params.num_not_finite != nullptr) params.num_not_finite[sample] += num_not_finite;
    }
  });
}

}  // namespace voxserve::kernels::cpu
