#include "kernels/boxes/box_candidates.cuh"
#include "kernels/boxes/query_box.h"
#include "kernels/boxes/query_decode.h"

namespace voxserve::kernels::cuda {
namespace {

// A block makes the boxes of one sample, a thread those of one query.
template <typename T>
__global__ void __launch_bounds__(kSelectThreads)
    DecodeQueriesKernel(const __grid_constant__ QueryDecodeParams params) {
  static_assert(kMaxQueries <= kSelectThreads);
  __shared__ uint64_t keys[kMaxQueries];
  const auto sample = static_cast<int32_t>(blockIdx.x), thread = static_cast<int32_t>(threadIdx.x);
  float box[kBoxColumns] = {};
  if (thread < params.k) {
    const CandidateFate fate = DecodeQuery(params, sample, thread, LoadAs<T>(), box);
    keys[thread] = fate == CandidateFate::kBox ? CandidateKey(box[kBoxScore], static_cast<uint32_t>(thread)) : 0;
    if (fate == CandidateFate::kNotFinite && params.num_not_finite != nullptr) {
      atomicAdd(&params.num_not_finite[sample], 1u);
    }
  }
  SortKeys(keys, params.k);  // the queries without a box, whose keys are 0, come last
  if (thread >= params.max_boxes) return;
  float* const row = params.boxes + (int64_t{sample} * params.max_boxes + thread) * kBoxPitch;
  const bool is_box = keys[thread] != 0;
  if (is_box) DecodeQuery(params, sample, static_cast<int32_t>(IndexOfKey(keys[thread])), LoadAs<T>(), box);
#pragma unroll
  for (int32_t column = 0; column < kBoxColumns; ++column) row[column] = is_box ? box[column] : ValueOfNoBox(column);
}

}  // namespace

cudaError_t DecodeQueries(const QueryDecodeParams& params, cudaStream_t stream) {
  if (params.num_samples == 0) return cudaSuccess;
  const NvtxRange range("DecodeQueries");
  return VisitFeatureType(params.dtype, [&](auto value) {
    DecodeQueriesKernel<decltype(value)>
        <<<static_cast<unsigned>(params.num_samples), kSelectThreads, 0, stream>>>(params);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
