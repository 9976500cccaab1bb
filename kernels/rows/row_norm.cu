#include <algorithm>
#include <cuda/std/limits>

#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/pool_reduce.h"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/row_launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/rows/layer_norm.cuh"
#include "kernels/rows/row_norm.h"

namespace voxserve::kernels::cuda {
namespace {

// The number of neighbouring threads that share a row. kNarrowLanes threads read a whole memory sector of float32
// values.
constexpr int kNarrowLanes = 8;
constexpr int kWideLanes = kWarpThreads;
constexpr int32_t kNarrowChannels = 64;  // kWideLanes threads share a row of more channels
static_assert(kWarpThreads % kNarrowLanes == 0 && kBlockThreads % kWarpThreads == 0);

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

  __device__ LayerNormOfRow(const Activation& of_norm, float epsilon, float mean_of_row, float variance)
      : activation(of_norm), mean(mean_of_row), scale(LayerNormScale(variance, epsilon)) {}

  __device__ float operator()(float value, float weight, float bias, float residual) const {
    value = Normalized(value - mean, scale, weight, bias, residual);
    return activation.function == ActivationFunction::kNone ? value : ActivateOutOfLine<Out>(activation, value);
  }
};

// A thread of at most so many values keeps the second norm's weights in registers, too. Otherwise it reads them for
// each row, from the L1 cache.
constexpr int kMostKeptSecond = 8;

// Returns as many blocks per SM as have registers for thread_values values of a row, and for the weights of these.
template <typename T, typename Out>
constexpr int LayerNormBlocksAnSm(int thread_values, bool has_second) {
  const bool are_short = sizeof(T) == 2 && sizeof(Out) == 2;
  if (thread_values > 12) return BlocksAnSm(are_short || !has_second ? 2 : 1);
  if (thread_values > 8) return BlocksAnSm(are_short && !has_second ? 3 : 2);
  if (has_second) return BlocksAnSm(thread_values <= kMostKeptSecond ? 2 : 3);
  return BlocksAnSm(are_short ? 4 : 3);
}

// The layer norm of at most kLanes * kPacks * kPack channels: kLanes threads hold a row in registers. Thread i has the
// packs i, i + kLanes, ... of kPack channels. A thread keeps its channels' weights for all of its rows, and loads its
// next row before it computes this one. is_aligned: whole packs may be read and written at once. kHasSecond: the second
// norm follows; it adds in the order of a call of its own.
template <typename T, typename Out, int kLanes, int kPacks, int kPack, bool kHasSecond>
__global__ void __launch_bounds__(kBlockThreads, LayerNormBlocksAnSm<T, Out>(kPacks* kPack, kHasSecond))
    LayerNormKernel(const __grid_constant__ RowNormParams params, bool is_aligned) {
  constexpr int kRowsPerBlock = kBlockThreads / kLanes;
  constexpr bool kKeepsSecond = kPacks * kPack <= kMostKeptSecond;
  constexpr bool kSumsApart = kPacks > 1 && kLanes < kWarpThreads;
  const int32_t first = static_cast<int32_t>(threadIdx.x) % kLanes * kPack;
  // Loads the thread's packs of a row, or of the weights. Without any, and beyond the channels, values are `otherwise`.
  const auto load = [&]<typename From>(const From* from, From otherwise, PackBits<From, kPack>(&bits)[kPacks]) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int32_t c = first + p * kLanes * kPack;
      Pack<From, kPack> pack;
#pragma unroll
      for (From& value : pack.values) value = otherwise;
      bits[p] = BitsOf(pack);
      if (from == nullptr || c >= params.in.channels) continue;
      if (is_aligned) {
        bits[p] = LoadBits<kPack>(from + c);
      } else {
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          if (c + i < params.in.channels) pack.values[i] = from[c + i];
        }
        bits[p] = BitsOf(pack);
      }
    }
  };
  const auto store = [&]<typename To>(const Pack<To, kPack>& results, To* to, int32_t c) {
    if (is_aligned) {
      *reinterpret_cast<Pack<To, kPack>*>(to + c) = results;
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (c + i < params.in.channels) to[c + i] = results.values[i];
      }
    }
  };
  const auto count = static_cast<float>(params.in.channels);
  // Returns a norm of the row whose values the threads hold, with zeros beyond the channels.
  const auto norm_of = [&](const float(&values)[kPacks][kPack], const Activation& activation, float epsilon) {
    float sums[kPacks] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) sums[kSumsApart ? p : 0] += values[p][i];
    }
    const float mean = MeanOf(SumOfRow<kLanes, kSumsApart>(sums), count);
    float squares[kPacks] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float difference = values[p][i] - mean;
        if (first + p * kLanes * kPack + i < params.in.channels) {
          float& sum = squares[kSumsApart ? p : 0];
          sum = AddSquare(difference, sum);
        }
      }
    }
    return LayerNormOfRow<Out>(activation, epsilon, mean, MeanOf(SumOfRow<kLanes, kSumsApart>(squares), count));
  };

  PackBits<float, kPack> weights[kPacks], biases[kPacks], second_weights[kPacks], second_biases[kPacks];
  load(params.weight, 1.0f, weights);
  load(params.bias, 0.0f, biases);
  const auto load_second = [&] {
    load(params.second.weight, 1.0f, second_weights);
    load(params.second.bias, 0.0f, second_biases);
  };
  if constexpr (kHasSecond && kKeepsSecond) load_second();
  WaitForEarlierKernels();
  const int64_t num_rows = NumRows(params.out.capacity, params.out.num_rows);
  const int64_t stride = int64_t{gridDim.x} * kRowsPerBlock;
  const auto* const in = static_cast<const T*>(params.in.data);
  const auto* const residual = static_cast<const T*>(params.residual.data);
  const T zero = FromFloat<T>(0.0f);
  PackBits<T, kPack> next[kPacks], next_residuals[kPacks];
  const auto load_next = [&](int64_t row) {
    const bool exists = row < num_rows;
    load(exists ? in + row * params.in.pitch : nullptr, zero, next);
    load(exists && residual != nullptr ? residual + row * params.residual.pitch : nullptr, zero, next_residuals);
  };
  const int64_t first_row = int64_t{blockIdx.x} * kRowsPerBlock;
  load_next(first_row + threadIdx.x / kLanes);
  // No thread leaves before its block's last row, since the warp's shuffles need all of them.
  for (int64_t block_row = first_row; block_row < num_rows; block_row += stride) {
    const int64_t row = block_row + threadIdx.x / kLanes;
    float values[kPacks][kPack];
    PackBits<T, kPack> residuals[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        values[p][i] = ValueOf<T, kPack>(next[p], i);
      }
      residuals[p] = next_residuals[p];
    }
    load_next(row + stride);
    const LayerNormOfRow<Out> norm = norm_of(values, params.activation, params.epsilon);
    const bool exists = row < num_rows;
    if (!kHasSecond && !exists) continue;
    Out* const out = static_cast<Out*>(params.out.data) + row * params.out.pitch;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int32_t c = first + p * kLanes * kPack;
      if (c >= params.in.channels) break;
      Pack<Out, kPack> results;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        results.values[i] =
            FromFloat<Out>(norm(values[p][i], ValueOf<float, kPack>(weights[p], i), ValueOf<float, kPack>(biases[p], i),
                                ValueOf<T, kPack>(residuals[p], i)));
        if constexpr (kHasSecond) values[p][i] = c + i < params.in.channels ? ToFloat(results.values[i]) : 0.0f;
      }
      if (exists) store(results, out, c);
    }
    if constexpr (kHasSecond) {
      if constexpr (!kKeepsSecond) load_second();
      const Activation none;
      const LayerNormOfRow<Out> second = norm_of(values, none, params.second.epsilon);
      if (!exists) continue;
      Out* const second_out = static_cast<Out*>(params.second.out.data) + row * params.second.out.pitch;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int32_t c = first + p * kLanes * kPack;
        if (c >= params.in.channels) break;
        Pack<Out, kPack> results;
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          results.values[i] = FromFloat<Out>(second(values[p][i], ValueOf<float, kPack>(second_weights[p], i),
                                                    ValueOf<float, kPack>(second_biases[p], i), 0.0f));
        }
        store(results, second_out, c);
      }
    }
  }
}

template <typename T, typename Out, int kLanes, int kPacks, int kPack, bool kHasSecond>
cudaError_t LaunchLayerNorm(const RowNormParams& params, cudaStream_t stream) {
  constexpr int kRowsPerBlock = kBlockThreads / kLanes;
  // As many blocks as run at a time: each loads its weights once, and its next rows while it computes.
  const int64_t most_blocks = int64_t{NumSms()} * LayerNormBlocksAnSm<T, Out>(kPacks * kPack, kHasSecond);
  const int64_t num_blocks = std::min((params.out.capacity + kRowsPerBlock - 1) / kRowsPerBlock, most_blocks);
  const auto is_pack_of = [](const CommonAlignment& alignment, size_t value_bytes) {
    return alignment.bytes() >= std::min(static_cast<int64_t>(kPack * value_bytes), kVectorBytes);
  };
  const bool is_aligned =
      params.in.channels % kPack == 0 && is_pack_of(CommonAlignment().Add(params.in).Add(params.residual), sizeof(T)) &&
      is_pack_of(CommonAlignment().Add(params.weight).Add(params.bias), sizeof(float)) &&
      is_pack_of(CommonAlignment().Add(params.second.weight).Add(params.second.bias), sizeof(float)) &&
      is_pack_of(CommonAlignment().Add(params.out).Add(params.second.out), sizeof(Out));
  return LaunchEarly(LayerNormKernel<T, Out, kLanes, kPacks, kPack, kHasSecond>, static_cast<unsigned>(num_blocks),
                     kBlockThreads, 0, stream, params, is_aligned);
}

constexpr int32_t kMostLayerNormChannels = 512;  // of LaunchLayerNorm

// How a row is divided among threads depends on its channels alone, and so does the order of its sums.
template <typename T, typename Out, bool kHasSecond>
cudaError_t LayerNorm(const RowNormParams& params, cudaStream_t stream) {
  const int32_t channels = params.in.channels;
  if (channels % 8 != 0) {
    if (channels <= 48) return LaunchLayerNorm<T, Out, 4, 3, 4, kHasSecond>(params, stream);
    if (channels <= 64) return LaunchLayerNorm<T, Out, 8, 2, 4, kHasSecond>(params, stream);
    if (channels <= 128) return LaunchLayerNorm<T, Out, 32, 1, 4, kHasSecond>(params, stream);
    return channels <= 256 ? LaunchLayerNorm<T, Out, 32, 2, 4, kHasSecond>(params, stream)
                           : LaunchLayerNorm<T, Out, 32, 4, 4, kHasSecond>(params, stream);
  }
  if (channels <= 32) return LaunchLayerNorm<T, Out, 4, 1, 8, kHasSecond>(params, stream);
  if (channels <= 64) return LaunchLayerNorm<T, Out, 8, 1, 8, kHasSecond>(params, stream);
  if (channels <= 128) return LaunchLayerNorm<T, Out, 16, 1, 8, kHasSecond>(params, stream);
  return channels <= 256 ? LaunchLayerNorm<T, Out, 32, 1, 8, kHasSecond>(params, stream)
                         : LaunchLayerNorm<T, Out, 32, 2, 8, kHasSecond>(params, stream);
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
      const LayerNormOfRow<Out> norm(params.activation, params.epsilon, mean, variance);
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
  const bool has_second = params.second.out.data != nullptr;
  if (has_second && (params.kind != RowNorm::kLayerNorm || params.out.dtype != params.in.dtype ||
                     params.second.out.dtype != params.in.dtype)) {
    return cudaErrorInvalidValue;
  }
  if (has_second && params.in.channels > kMostLayerNormChannels) {
    RowNormParams first = params;
    first.second = {};
    VOXSERVE_RETURN_IF_CUDA(NormalizeRows(first, stream));
    return NormalizeRows(SecondNormOf(params), stream);
  }
  return VisitInAndOutType(params.in.dtype, params.out.dtype, [&](auto in, auto out) {
    using T = decltype(in);
    using Out = decltype(out);
    if (params.kind == RowNorm::kLayerNorm && params.in.channels <= kMostLayerNormChannels) {
      if constexpr (std::is_same_v<T, Out>) {
        if (has_second) return LayerNorm<T, Out, true>(params, stream);
      }
      return LayerNorm<T, Out, false>(params, stream);
    }
    return params.in.channels <= kNarrowChannels ? Launch<T, Out, kNarrowLanes>(params, stream)
                                                 : Launch<T, Out, kWideLanes>(params, stream);
  });
}

}  // namespace voxserve::kernels::cuda
