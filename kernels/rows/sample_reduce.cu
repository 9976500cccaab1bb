#include <cuda/std/limits>

#include "kernels/core/launch.cuh"
#include "kernels/rows/sample_reduce.h"

namespace voxserve::kernels::cuda {
namespace {

// Blocks per sample: enough for one large scan to fill a GPU.
constexpr int32_t kParts = 256;

__device__ float StartOf(PoolReduce reduce) {
  return reduce == PoolReduce::kMax ? -::cuda::std::numeric_limits<float>::infinity() : 0.0f;
}
__device__ float Combine(PoolReduce reduce, float a, float b) {
  return reduce == PoolReduce::kMax ? LargerOrNan(a, b) : a + b;
}

// Reduces one part of one sample's rows per block to partials [num_samples, kParts, channels]. Neighbouring threads
// have neighbouring channels; threads left over take further rows.
template <typename T, bool kIsGeneralised>
__global__ void __launch_bounds__(kBlockThreads) PartialsKernel(const SampleReduceParams params, float* partials) {
  __shared__ float shared[kBlockThreads];
  const auto sample = static_cast<int32_t>(blockIdx.y), part = static_cast<int32_t>(blockIdx.x);
  const int64_t begin = params.sample_begin[sample], end = params.sample_begin[sample + 1];
  const int64_t part_rows = (end - begin + kParts - 1) / kParts;
  const int64_t first = begin + part * part_rows;
  const int64_t last = first + part_rows < end ? first + part_rows : end;

  const int32_t lanes = params.out.channels < kBlockThreads ? params.out.channels : kBlockThreads;
  const int32_t rows_at_once = kBlockThreads / lanes;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t row_in_block = thread / lanes, lane = thread - row_in_block * lanes;
  const auto* const in = static_cast<const T*>(params.in.data);
  for (int32_t first_channel = 0; first_channel < params.out.channels; first_channel += lanes) {
    const int32_t c = first_channel + lane;
    const bool has_channel = c < params.out.channels && row_in_block < rows_at_once;
    float result = StartOf(params.reduce);
    if (has_channel) {
      const bool is_deviation = params.centre != nullptr;
      const float centre = is_deviation ? params.centre[int64_t{sample} * params.out.channels + c] : 0.0f;
#pragma unroll 4
      for (int64_t row = first + row_in_block; row < last; row += rows_at_once) {
        const float value = ToFloat(in[row * params.in.pitch + c]);
        if constexpr (kIsGeneralised) {
          result += powf(value < params.least ? params.least : value, params.exponent);  // NaN stays NaN
        } else {
          const float deviation = value - centre;
          result = Combine(params.reduce, result, is_deviation ? deviation * deviation : value);
        }
      }
    }
    shared[thread] = result;
    __syncthreads();
    if (has_channel && row_in_block == 0) {
      for (int32_t r = 1; r < rows_at_once; ++r) result = Combine(params.reduce, result, shared[r * lanes + lane]);
      partials[(int64_t{sample} * kParts + part) * params.out.channels + c] = result;
    }
    __syncthreads();
  }
}

// Combines the parts of one channel of one sample per thread.
template <typename Out>
__global__ void __launch_bounds__(kBlockThreads)
    CombinePartsKernel(const SampleReduceParams params, const float* partials) {
  const int64_t index = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  const int64_t sample = index / params.out.channels, c = index - sample * params.out.channels;
  if (sample >= params.out.capacity) return;
  const int64_t num_rows = params.sample_begin[sample + 1] - params.sample_begin[sample];
  float result = num_rows == 0 ? 0.0f : StartOf(params.reduce);
  if (num_rows > 0) {
    for (int32_t part = 0; part < kParts; ++part) {
      result = Combine(params.reduce, result, partials[(sample * kParts + part) * params.out.channels + c]);
    }
    if (params.reduce == PoolReduce::kAverage) result /= static_cast<float>(num_rows);
    if (params.exponent != 0) result = powf(result, 1.0f / params.exponent);
  }
  static_cast<Out*>(params.out.data)[sample * params.out.pitch + c] = FromFloat<Out>(result);
}

// A thread replaces the values of one group of one sample by their mean, or by the scale that params.is_scale asks for.
__global__ void __launch_bounds__(kBlockThreads) GroupAverageKernel(const GroupAverageParams params) {
  const int64_t index = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (index >= int64_t{params.num_samples} * params.num_groups) return;
  const int32_t group_channels = params.channels / params.num_groups;
  float* const values = params.values + index * group_channels;
  float sum = 0;
  for (int32_t c = 0; c < group_channels; ++c) sum += values[c];
  const float mean = sum / static_cast<float>(group_channels);
  const float scale = 1.0f / sqrtf(mean + params.epsilon);
  const float* const weight =
      params.weight == nullptr ? nullptr : params.weight + index % params.num_groups * group_channels;
  for (int32_t c = 0; c < group_channels; ++c) {
    values[c] = !params.is_scale ? mean : weight == nullptr ? scale : weight[c] * scale;
  }
}

}  // namespace

size_t SampleReduceWorkspaceBytes(int32_t num_samples, int32_t channels) {
  WorkspaceCutter workspace(nullptr);
  workspace.Take<float>(int64_t{num_samples} * kParts * channels);
  return workspace.bytes();
}

cudaError_t SampleReduce(const SampleReduceParams& params, cudaStream_t stream) {
  if (params.out.capacity == 0 || params.out.channels == 0) return cudaSuccess;
  const NvtxRange range("SampleReduce");
  auto* const partials = static_cast<float*>(params.workspace);
  return VisitInAndOutType(params.in.dtype, params.out.dtype, [&](auto in, auto out) {
    using T = decltype(in);
    using Out = decltype(out);
    const dim3 blocks(kParts, static_cast<unsigned>(params.out.capacity));
    if (params.exponent != 0) {
      PartialsKernel<T, true><<<blocks, kBlockThreads, 0, stream>>>(params, partials);
    } else {
      PartialsKernel<T, false><<<blocks, kBlockThreads, 0, stream>>>(params, partials);
    }
    VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
    CombinePartsKernel<Out>
        <<<NumBlocks(params.out.capacity * params.out.channels), kBlockThreads, 0, stream>>>(params, partials);
    return LaunchStatus(stream);
  });
}

cudaError_t GroupAverage(const GroupAverageParams& params, cudaStream_t stream) {
  if (params.num_samples == 0 || params.channels == 0) return cudaSuccess;
  const NvtxRange range("GroupAverage");
  GroupAverageKernel<<<NumBlocks(int64_t{params.num_samples} * params.num_groups), kBlockThreads, 0, stream>>>(params);
  return LaunchStatus(stream);
}

}  // namespace voxserve::kernels::cuda
