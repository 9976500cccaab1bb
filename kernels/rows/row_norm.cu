#include <cuda/std/limits>

#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/pool_reduce.h"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/rows/row_norm.h"

namespace voxserve::kernels::cuda {
namespace {

// The number of neighbouring threads that share a row. kNarrowLanes threads read a whole memory sector of float32
// values.
constexpr int kNarrowLanes = 8;
constexpr int kWideLanes = kWarpThreads;
constexpr int32_t kNarrowChannels = 64;  // kWideLanes threads share a row of more channels
static_assert(kWarpThreads % kNarrowLanes == 0 && kBlockThreads % kWarpThreads == 0);

// Combines the values of a row's threads. All these threads get the result, with the same bits: both sides of an
// exchange combine the same two values. All threads of the warp call it.
template <int kLanes, typename Combine>
__device__ float CombineLanes(float value, const Combine& combine) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// One thread's part of a row: channels lane, lane + kLanes, ...
template <typename T, int kLanes>
struct RowPart {
  const T* in;
  int32_t channels;  // 0 for a row that does not exist
  int32_t lane;

  template <typename ValueOf>
  __device__ float Sum(const ValueOf& value_of) const {
    float sum = 0;
    for (int32_t c = lane; c < channels; c += kLanes) sum += value_of(ToFloat(in[c]));
    return CombineLanes<kLanes>(sum, [](float a, float b) { return a + b; });
  }
  __device__ float Largest() const {
    return Extreme(-::cuda::std::numeric_limits<float>::infinity(), [](float a, float b) { return LargerOrNan(a, b); });
  }
  __device__ float Smallest() const {
    return Extreme(::cuda::std::numeric_limits<float>::infinity(), [](float a, float b) { return SmallerOrNan(a, b); });
  }
  // Writes value_of(value, channel) to every channel.
  template <typename Out, typename ValueOf>
  __device__ void Write(Out* out, const ValueOf& value_of) const {
    for (int32_t c = lane; c < channels; c += kLanes) out[c] = FromFloat<Out>(value_of(ToFloat(in[c]), c));
  }
  // Writes the one value of a reduction.
  template <typename Out>
  __device__ void WriteOne(Out* out, float value) const {
    if (lane == 0 && channels > 0) *out = FromFloat<Out>(value);
  }

 private:
  template <typename Combine>
  __device__ float Extreme(float start, const Combine& combine) const {
    for (int32_t c = lane; c < channels; c += kLanes) start = combine(start, ToFloat(in[c]));
    return CombineLanes<kLanes>(start, combine);
  }
};

// What a layer norm makes of a value, once the row's mean and variance are known.
template <typename Out>
struct LayerNormOfRow {
  const Activation& activation;
  float mean, scale;

  __device__ LayerNormOfRow(const RowNormParams& params, float mean_of_row, float variance)
      : activation(params.activation), mean(mean_of_row), scale(1.0f / sqrtf(variance + params.epsilon)) {}

  __device__ float operator()(float value, float weight, float bias, float residual) const {
    return ActivateFor<Out>(activation, (value - mean) * scale * weight + bias + residual);
  }
};

constexpr int kPack = 4;  // neighbouring channels of a thread

// The layer norm of at most kLanes * kPacks * kPack channels: kLanes threads hold a row in registers. Thread i has the
// packs i, i + kLanes, ... is_aligned: whole packs may be read and written at once.
template <typename T, typename Out, int kLanes, int kPacks>
__global__ void __launch_bounds__(kBlockThreads)
    LayerNormKernel(const __grid_constant__ RowNormParams params, bool is_aligned) {
  const int32_t first = static_cast<int32_t>(threadIdx.x) % kLanes * kPack;
  const auto load = [&](const auto* from, int32_t c, float(&values)[kPack]) {
    if (is_aligned) {
      const auto pack = LoadPack<kPack>(from + c);
#pragma unroll
      for (int i = 0; i < kPack; ++i) values[i] = ToFloat(pack.values[i]);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) values[i] = c + i < params.in.channels ? ToFloat(from[c + i]) : 0.0f;
    }
  };
  // Loads the thread's packs of a row, or of the weights; without any, all values are `otherwise`.
  const auto load_packs = [&](const auto* from, float otherwise, float(&values)[kPacks][kPack]) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int32_t c = first + p * kLanes * kPack;
#pragma unroll
      for (float& value : values[p]) value = otherwise;
      if (from != nullptr && c < params.in.channels) load(from, c, values[p]);
    }
  };

  float weights[kPacks][kPack], biases[kPacks][kPack], values[kPacks][kPack], residuals[kPacks][kPack];
  load_packs(params.weight, 1, weights);
  load_packs(params.bias, 0, biases);
  WaitForEarlierKernels();
  const int64_t row = int64_t{blockIdx.x} * (kBlockThreads / kLanes) + threadIdx.x / kLanes;
  const bool exists = row < NumRows(params.out.capacity, params.out.num_rows);
  const int64_t read_row = exists ? row : 0;
  load_packs(static_cast<const T*>(params.in.data) + read_row * params.in.pitch, 0, values);
  const T* const residual = static_cast<const T*>(params.residual.data);
  load_packs(residual == nullptr ? nullptr : residual + read_row * params.residual.pitch, 0, residuals);

  const auto add = [](float a, float b) { return a + b; };
  float sum = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += values[p][i];
  }
  const auto count = static_cast<float>(params.in.channels);
  const float mean = CombineLanes<kLanes>(sum, add) / count;
  float squares = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const float difference = values[p][i] - mean;
      if (first + p * kLanes * kPack + i < params.in.channels) squares += difference * difference;
    }
  }
  const LayerNormOfRow<Out> norm(params, mean, CombineLanes<kLanes>(squares, add) / count);
  if (!exists) return;
  Out* const out = static_cast<Out*>(params.out.data) + row * params.out.pitch;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int32_t c = first + p * kLanes * kPack;
    if (c >= params.in.channels) break;
    Pack<Out, kPack> results;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      results.values[i] = FromFloat<Out>(norm(values[p][i], weights[p][i], biases[p][i], residuals[p][i]));
    }
    if (is_aligned) {
      *reinterpret_cast<Pack<Out, kPack>*>(out + c) = results;
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (c + i < params.in.channels) out[c + i] = results.values[i];
      }
    }
  }
}

template <typename T, typename Out, int kLanes, int kPacks>
cudaError_t LaunchLayerNorm(const RowNormParams& params, cudaStream_t stream) {
  constexpr int kRowsPerBlock = kBlockThreads / kLanes;
  const auto num_blocks = static_cast<unsigned>((params.out.capacity + kRowsPerBlock - 1) / kRowsPerBlock);
  const bool is_aligned =
      params.in.channels % kPack == 0 &&
      CommonAlignment().Add(params.in).Add(params.residual).bytes() >= int64_t{kPack * sizeof(T)} &&
      CommonAlignment().Add(params.weight).Add(params.bias).bytes() >= int64_t{kPack * sizeof(float)} &&
      CommonAlignment().Add(params.out).bytes() >= int64_t{kPack * sizeof(Out)};
  return LaunchEarly(LayerNormKernel<T, Out, kLanes, kPacks>, num_blocks, kBlockThreads, 0, stream, params, is_aligned);
}

// No thread leaves before the end, since the warp's shuffles need all of them.
template <typename T, typename Out, int kLanes>
__global__ void __launch_bounds__(kBlockThreads) NormalizeRowsKernel(const __grid_constant__ RowNormParams params) {
  constexpr int kRowsPerBlock = kBlockThreads / kLanes;
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kLanes;
  const bool exists = row < NumRows(params.out.capacity, params.out.num_rows);
  const int64_t read_row = exists ? row : 0;
  const RowPart<T, kLanes> part{static_cast<const T*>(params.in.data) + read_row * params.in.pitch,
                                exists ? params.in.channels : 0, static_cast<int32_t>(threadIdx.x) % kLanes};
  auto* const out = static_cast<Out*>(params.out.data) + read_row * params.out.pitch;
  switch (params.kind) {
    case RowNorm::kSoftmax: {
      const float largest = part.Largest();
      const float sum = part.Sum([&](float value) { return expf(value - largest); });
      part.Write(out, [&](float value, int32_t) { return expf(value - largest) / sum; });
      break;
    }
    case RowNorm::kLayerNorm: {
      const auto count = static_cast<float>(params.in.channels);
      const float mean = part.Sum([](float value) { return value; }) / count;
      const float variance = part.Sum([&](float value) { return (value - mean) * (value - mean); }) / count;
      const LayerNormOfRow<Out> norm(params, mean, variance);
      const T* const residual = static_cast<const T*>(params.residual.data);
      part.Write(out, [&](float value, int32_t c) {
        return norm(value, params.weight == nullptr ? 1.0f : params.weight[c],
                    params.bias == nullptr ? 0.0f : params.bias[c],
                    residual == nullptr ? 0.0f : ToFloat(residual[read_row * params.residual.pitch + c]));
      });
      break;
    }
    case RowNorm::kL2: {
      const float length = sqrtf(part.Sum([](float value) { return value * value; }));
      const float divisor = length < params.epsilon ? params.epsilon : length;  // NaN stays NaN
      part.Write(out, [&](float value, int32_t) { return value / divisor; });
      break;
    }
    case RowNorm::kSum:
      part.WriteOne(out, part.Sum([](float value) { return value; }));
      break;
    case RowNorm::kMean:
      part.WriteOne(out, part.Sum([](float value) { return value; }) / static_cast<float>(params.in.channels));
      break;
    case RowNorm::kMax:
      part.WriteOne(out, part.Largest());
      break;
    case RowNorm::kMin:
      part.WriteOne(out, part.Smallest());
      break;
    case RowNorm::kLength:
      part.WriteOne(out, sqrtf(part.Sum([](float value) { return value * value; })));
      break;
  }
}

template <typename T, typename Out, int kLanes>
cudaError_t Launch(const RowNormParams& params, cudaStream_t stream) {
  constexpr int kRowsPerBlock = kBlockThreads / kLanes;
  const auto num_blocks = static_cast<unsigned>((params.out.capacity + kRowsPerBlock - 1) / kRowsPerBlock);
  NormalizeRowsKernel<T, Out, kLanes><<<num_blocks, kBlockThreads, 0, stream>>>(params);
  return LaunchStatus(stream);
}

}  // namespace

cudaError_t NormalizeRows(const RowNormParams& params, cudaStream_t stream) {
  if (params.out.capacity == 0 || params.out.channels == 0) return cudaSuccess;
  const NvtxRange range("NormalizeRows");
  return VisitInAndOutType(params.in.dtype, params.out.dtype, [&](auto in, auto out) {
    using T = decltype(in);
    using Out = decltype(out);
    if (params.kind == RowNorm::kLayerNorm) {  // the thresholds depend on the channels alone, and so does a sum's order
      if (params.in.channels <= kNarrowLanes * 2 * kPack)
        return LaunchLayerNorm<T, Out, kNarrowLanes, 2>(params, stream);
      if (params.in.channels <= kWideLanes * kPack) return LaunchLayerNorm<T, Out, kWideLanes, 1>(params, stream);
      if (params.in.channels <= kWideLanes * 4 * kPack) return LaunchLayerNorm<T, Out, kWideLanes, 4>(params, stream);
    }
    return params.in.channels <= kNarrowChannels ? Launch<T, Out, kNarrowLanes>(params, stream)
                                                 : Launch<T, Out, kWideLanes>(params, stream);
  });
}

}  // namespace voxserve::kernels::cuda
