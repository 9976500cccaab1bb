#pragma once

// Reductions over all rows of each sample of a batch, channel by channel: global pooling, and the moments for instance
// and group norms.
//
// A sample's rows are cut into parts that depend only on their number. Each part's rows, and then the parts, are
// reduced in a fixed order. Results are deterministic and do not depend on the batch's other samples.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/pool_reduce.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct SampleReduceParams {
  const int64_t* sample_begin = nullptr;  // [samples + 1] first row of each sample
  PoolReduce reduce = PoolReduce::kMax;   // a sample without rows gives 0
  // Only for kAverage. If above 0, the result is the generalised mean (average of max(in, least)^exponent)^(1 /
  // exponent) in place of the average; `least` must then be above 0, and `centre` null.
  float exponent = 0;
  float least = 0;
  ConstRows in;                   // float32 only on the CPU
  const float* centre = nullptr;  // [samples, channels], packed; reduces (in - centre)^2; null: reduces in
  Rows out;                       // one row per sample, in's channels, in's type or float32
  void* workspace = nullptr;      // on a GPU: SampleReduceWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<SampleReduceParams>);

// Writes the mean of each group of neighbouring channels to every channel of the group. With is_scale it writes the
// factor of a norm instead: weight / sqrt(mean + epsilon).
struct GroupAverageParams {
  int32_t num_samples = 0;
  int32_t channels = 0;
  int32_t num_groups = 1;  // divides channels
  bool is_scale = false;
  const float* weight = nullptr;  // [channels]; null: 1
  float epsilon = 0;
  float* values = nullptr;  // [num_samples, channels], changed in place
};
static_assert(std::is_trivially_copyable_v<GroupAverageParams>);

namespace cpu {

void SampleReduce(const SampleReduceParams& params, ThreadPool& pool);
void GroupAverage(const GroupAverageParams& params);

}  // namespace cpu

namespace cuda {

// Depends only on num_samples and channels; a multiple of 256.
size_t SampleReduceWorkspaceBytes(int32_t num_samples, int32_t channels);
cudaError_t SampleReduce(const SampleReduceParams& params, cudaStream_t stream);
cudaError_t GroupAverage(const GroupAverageParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
