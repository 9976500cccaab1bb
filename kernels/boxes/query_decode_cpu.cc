#include <atomic>
#include <cassert>

#include "kernels/boxes/query_box.h"
#include "kernels/boxes/query_decode.h"

namespace voxserve::kernels::cpu {

void DecodeQueries(const QueryDecodeParams& params, ThreadPool& pool, std::pmr::memory_resource* memory) {
  assert(params.dtype == DType::kFloat32);
  const auto load = [](const ImageChannels& rows, int64_t row, int32_t channel) {
    return static_cast<const float*>(rows.data)[row * rows.pitch + channel];
  };
  pool.ParallelFor(params.num_samples, 1, [&](int64_t begin, int64_t end) {
    ScratchVector<uint64_t> keys(memory);
    for (auto sample = static_cast<int32_t>(begin); sample < end; ++sample) {
      uint32_t num_not_finite = 0;
      keys.clear();
      for (int32_t query = 0; query < params.k; ++query) {
        float box[kBoxColumns] = {};
        const CandidateFate fate = DecodeQuery(params, sample, query, load, box);
        if (fate == CandidateFate::kBox) keys.push_back(CandidateKey(box[kBoxScore], static_cast<uint32_t>(query)));
        if (fate == CandidateFate::kNotFinite) ++num_not_finite;
      }
      WriteBestBoxes(
          keys, params.max_boxes,
          [&](uint64_t key, float(&box)[kBoxColumns]) {
            return DecodeQuery(params, sample, static_cast<int32_t>(IndexOfKey(key)), load, box);
          },
          params.boxes + int64_t{sample} * params.max_boxes * kBoxPitch, &num_not_finite);
      if (params.num_not_finite != nullptr) std::atomic_ref(params.num_not_finite[sample]).fetch_add(num_not_finite);
    }
  });
}

}  // namespace voxserve::kernels::cpu
