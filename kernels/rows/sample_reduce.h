#pragma once

// SampleReduce reduces all rows of each sample of a batch to one row, channel by channel: the maximum, average or sum.
// The engine uses it for global pooling. With GroupAverage, it computes the means and variances of instance and group
// norms.
//
// A sample's rows are cut into parts, whose bounds depend only on the sample's number of rows. The rows of each part,
// and then the parts, are reduced in a fixed order. So results are deterministic and do not depend on the batch's other
// samples.

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
  // Only for kAverage. If exponent is above 0, the result is not the average but the generalised mean
  // (average of max(in, least)^exponent)^(1 / exponent). `least` must then be above 0, and `centre` null.
  float exponent = 0;
  float least = 0;
  ConstRows in;                   // the CPU only supports float32
  const float* centre = nullptr;  // [samples, channels], packed: (in - centre)^2 is reduced; null: `in` is reduced
  Rows out;                       // one row per sample; in's channels; in's type or float32
  void* workspace = nullptr;      // on a GPU: SampleReduceWorkspaceBytes, 256-byte aligned
};
static_assert(std::is_trivially_copyable_v<SampleReduceParams>);

// GroupAverage replaces each value by the mean of its group of neighbouring channels. With is_scale, the values are
// variances, and GroupAverage replaces each by the factor of a norm: weight / sqrt(mean + epsilon).
struct GroupAverageParams {
  int32_t num_samples = 0;
  int32_t channels = 0;
  int32_t num_groups = 1;  // divides channels
  bool is_scale = false;
  const float* weight = nullptr;  // [channels], read only with is_scale; null: all are 1
  float epsilon = 0;              // read only with is_scale
  float* values = nullptr;        // [num_samples, channels], changed in place
};
static_assert(std::is_trivially_copyable_v<GroupAverageParams>);

namespace cpu {

void SampleReduce(const SampleReduceParams& params, ThreadPool& pool);
void GroupAverage(const GroupAverageParams& params);

}  // namespace cpu

namespace cuda {

// Returns the bytes of SampleReduceParams::workspace, a multiple of 256.
size_t SampleReduceWorkspaceBytes(int32_t num_samples, int32_t channels);
cudaError_t SampleReduce(const SampleReduceParams& params, cudaStream_t stream);
cudaError_t GroupAverage(const GroupAverageParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
