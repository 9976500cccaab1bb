#pragma once

// This header stores the normalized sums of the implicit GEMM (normed_implicit_gemm.h). Only .cu files include it.

#include <cstdint>
#include <type_traits>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/store_sums.cuh"
#include "kernels/conv/implicit_gemm/warp_group_ring.cuh"
#include "kernels/core/barriers.cuh"
#include "kernels/rows/layer_norm.cuh"
#include "kernels/rows/row_norm.h"

namespace voxserve::kernels::cuda {

// The epilogue of the arguments has the norm's residual, and `out` is that of the norm.
template <typename T>
struct NormedArguments : ImplicitGemmArguments<T> {
  NormedArguments(const ImplicitGemmParams& params, const RowNormParams& of_rows)
      : ImplicitGemmArguments<T>(params, params.operands.epilogue),
        norm(of_rows),
        second_out(static_cast<T*>(of_rows.second.out.data)),
        second_pitch(of_rows.second.out.pitch) {
    this->out = of_rows.out.data;
    this->out_pitch = of_rows.out.pitch;
    this->epilogue.residual = static_cast<const T*>(of_rows.residual.data);
    this->epilogue.residual_pitch = of_rows.residual.pitch;
  }

  RowNormParams norm;
  T* second_out;  // null: there is no second norm
  int64_t second_pitch;
};

// The arrays that a block keeps for its norms, in this order.
enum class KeptNormArray { kConvBias, kWeight, kBias, kSecondWeight, kSecondBias };

// Stores the rows of a warp: 16 rows and all of their 2 * kSums channels. Threads hold sums as in WarpSumsStore, so the
// four threads of a row have eight neighbouring channels of every 32. The functions are those of WarpSumsStore.
template <typename T, int kSums>
class NormedSumsStore {
 public:
  __device__ void Load(const NormedArguments<T>& arguments, const WarpRows& rows, int32_t) {
    const auto from = AddressesOf(arguments.epilogue.residual, arguments.epilogue.residual_pitch, rows);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) LoadResiduals(from, j);
  }

  __device__ static float ValueToKeep(const NormedArguments<T>& arguments, int array, int32_t channel) {
    if (channel >= kChannels) return 0.0f;
    const auto read = [&](const float* from, float otherwise) {
      return from == nullptr ? otherwise : __ldg(from + channel);
    };
    switch (static_cast<KeptNormArray>(array)) {
      case KeptNormArray::kConvBias:
        return read(arguments.epilogue.bias, 0.0f);
      case KeptNormArray::kWeight:
        return read(arguments.norm.weight, 1.0f);
      case KeptNormArray::kBias:
        return read(arguments.norm.bias, 0.0f);
      case KeptNormArray::kSecondWeight:
        return read(arguments.norm.second.weight, 1.0f);
      case KeptNormArray::kSecondBias:
        break;
    }
    return read(arguments.norm.second.bias, 0.0f);
  }

  // The sums become other values.
  __device__ void Store(const NormedArguments<T>& arguments, float (&sums)[kSums], const WarpRows& rows, int32_t,
                        uint32_t kept) {
    // The convolution's results, as it would store them.
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const float4 bias = Kept(kept, KeptNormArray::kConvBias, j, part);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          Four of = FourOf(sums, j, part, half);
          of[0] += bias.x;
          of[1] += bias.y;
          of[2] += bias.z;
          of[3] += bias.w;
          Round(of[0], of[1]);
          Round(of[2], of[3]);
        }
      }
    }
    StoreNorm<true>(sums, arguments.norm.epsilon, kept,
                    AddressesOf(arguments.epilogue.residual, arguments.epilogue.residual_pitch, rows),
                    AddressesOf(static_cast<T*>(arguments.out), arguments.out_pitch, rows));
    if (arguments.second_out == nullptr) return;
    StoreNorm<false>(sums, arguments.norm.second.epsilon, kept, {},
                     AddressesOf(arguments.second_out, arguments.second_pitch, rows));
  }

 private:
  static constexpr int kCount = 8;  // neighbouring channels of a thread
  static constexpr int kVectors = kSums / 16;
  static constexpr int kParts = 2;  // of a vector: four channels, so that few weights are in registers at a time
  static constexpr int kChannels = 2 * kSums;
  static constexpr int kRowThreads = 4;
  static constexpr int kVectorStride = kRowThreads * kCount;                     // channels between a thread's vectors
  static constexpr int kHeld = kVectors < 4 ? kVectors : kVectors == 4 ? 4 : 3;  // vectors whose residuals are held
  static_assert((kChannels & (kChannels - 1)) == 0, "a product with 1 / kChannels is exact");
  static_assert(sizeof(T) == 2);
  using Words = Pack<uint32_t, kCount / 2>;

  // Where the thread's first vector of each of its rows lies; null: there is no such row, or no matrix.
  template <typename Value>
  struct Addresses {
    Value* of[2];
  };
  template <typename Value>
  __device__ static Addresses<Value> AddressesOf(Value* first, int64_t pitch, const WarpRows& rows) {
    Addresses<Value> addresses;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool exists = first != nullptr && rows.rows[half] >= 0;
      addresses.of[half] = exists ? first + rows.rows[half] * pitch + ChannelOf(0) : nullptr;
    }
    return addresses;
  }

  // Normalizes the values, stores the results and, if they are those of the first norm, leaves them in `values`. from:
  // where the first norm's residuals lie.
  template <bool kIsFirst>
  __device__ void StoreNorm(float (&values)[kSums], float epsilon, uint32_t kept, const Addresses<const T>& from,
                            const Addresses<T>& to) {
    constexpr KeptNormArray kWeights = kIsFirst ? KeptNormArray::kWeight : KeptNormArray::kSecondWeight;
    constexpr KeptNormArray kBiases = kIsFirst ? KeptNormArray::kBias : KeptNormArray::kSecondBias;
    float scales[2];
    Center(values, epsilon, scales);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      Words results[2];
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const float4 weight = Kept(kept, kWeights, j, part), bias = Kept(kept, kBiases, j, part);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float2 residuals[2] = {};
          if constexpr (kIsFirst) {
            const Words& words = residuals_[j % kHeld][half];
            residuals[0] = FloatsOf(words.values[2 * part]);
            residuals[1] = FloatsOf(words.values[2 * part + 1]);
          }
          const float scale = scales[half];
          Four of = FourOf(values, j, part, half);
          of[0] = Normalized(of[0], scale, weight.x, bias.x, residuals[0].x);
          of[1] = Normalized(of[1], scale, weight.y, bias.y, residuals[0].y);
          of[2] = Normalized(of[2], scale, weight.z, bias.z, residuals[1].x);
          of[3] = Normalized(of[3], scale, weight.w, bias.w, residuals[1].y);
          results[half].values[2 * part] = kIsFirst ? Round(of[0], of[1]) : Rounded(of[0], of[1]);
          results[half].values[2 * part + 1] = kIsFirst ? Round(of[2], of[3]) : Rounded(of[2], of[3]);
        }
      }
      if constexpr (kIsFirst && kVectors > kHeld) {
        if (j + kHeld < kVectors) LoadResiduals(from, j + kHeld);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (to.of[half] != nullptr) *reinterpret_cast<Words*>(to.of[half] + j * kVectorStride) = results[half];
      }
    }
  }

  // Four neighbouring channels of a row among the thread's sums.
  struct Four {
    float (&sums)[kSums];
    int first;
    __device__ float& operator[](int i) { return sums[first + i / 2 * 4 + i % 2]; }
  };
  __device__ static Four FourOf(float (&sums)[kSums], int j, int part, int half) {
    return {sums, (j * 4 + part * 2) * 4 + half * 2};
  }

  __device__ static int32_t ChannelOf(int vector) {
    return vector * kVectorStride + static_cast<int32_t>(threadIdx.x) % kRowThreads * kCount;
  }

  __device__ static float4 Kept(uint32_t kept, KeptNormArray array, int vector, int part) {
    const int32_t place = static_cast<int32_t>(array) * kKeptChannels + ChannelOf(vector) + part * 4;
    return LoadSharedFloats(kept + static_cast<uint32_t>(place) * static_cast<uint32_t>(sizeof(float)));
  }

  __device__ static float2 FloatsOf(uint32_t word) {
    const auto& pair = reinterpret_cast<const Pack<T, 2>&>(word);
    return make_float2(ToFloat(pair.values[0]), ToFloat(pair.values[1]));
  }

  // Returns the bits of two values that are rounded to T. The first is in the lower half.
  __device__ static uint32_t Rounded(float first, float second) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {  // the compiler joins two conversions to half alone
      const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
      return reinterpret_cast<const uint32_t&>(pair);
    }
    const Pack<T, 2> pair = {FromFloat<T>(first), FromFloat<T>(second)};
    return reinterpret_cast<const uint32_t&>(pair);
  }
  // Does the same, and rounds the values themselves.
  __device__ static uint32_t Round(float& first, float& second) {
    const uint32_t bits = Rounded(first, second);
    const float2 rounded = FloatsOf(bits);
    first = rounded.x;
    second = rounded.y;
    return bits;
  }

  __device__ void LoadResiduals(const Addresses<const T>& from, int vector) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Words& words = residuals_[vector % kHeld][half];
      words = {};
      if (from.of[half] != nullptr) {
        words = LoadPack<kCount / 2>(reinterpret_cast<const uint32_t*>(from.of[half] + vector * kVectorStride));
      }
    }
  }

  // Subtracts from each value its row's mean, and returns the factors of the differences.
  __device__ static void Center(float (&values)[kSums], float epsilon, float (&scales)[2]) {
    constexpr float kAChannel = 1.0f / kChannels;
    float parts[2][kVectors];
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kCount; ++i) sum += FourOf(values, j, i / 4, half)[i % 4];
        parts[half][j] = sum;
      }
    }
    float means[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) means[half] = __fmul_rn(SumOfRow<kRowThreads, true>(parts[half]), kAChannel);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          float& value = FourOf(values, j, i / 4, half)[i % 4];
          value = __fsub_rn(value, means[half]);
          sum = AddSquare(value, sum);
        }
        parts[half][j] = sum;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scales[half] = LayerNormScale(__fmul_rn(SumOfRow<kRowThreads, true>(parts[half]), kAChannel), epsilon);
    }
  }

  Words residuals_[kHeld][2];
};

}  // namespace voxserve::kernels::cuda
