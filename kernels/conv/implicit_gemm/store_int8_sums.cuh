#pragma once

// This header stores the int32 sums of kernels in 8 bits with their epilogue (conv/int8_epilogue.h), and chooses by the
// type of the factors how an implicit GEMM stores its sums. Only .cu files include it.
//
// Arguments: those of the kernel, ImplicitGemmArguments or Int8Im2colOutputs (kernels/image). They have the output and
// the epilogue: out, out_pitch, out_channels, out_dtype, has_out_vectors and epilogue.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/conv/implicit_gemm/arguments.cuh"
#include "kernels/conv/implicit_gemm/int8_epilogue.cuh"
#include "kernels/conv/implicit_gemm/store_sums.cuh"
#include "kernels/conv/implicit_gemm/warp_group_ring.cuh"
#include "kernels/core/barriers.cuh"

namespace voxserve::kernels::cuda {

// The arrays of the epilogue that a block keeps in shared memory, in this order: float32 [kKeptChannels] each.
enum KeptInt8Array { kKeptMultiplier, kKeptBias, kKeptResidualScale };
inline constexpr int kNumKeptInt8Arrays = 3;

// Stores neighbouring sums of a row one by one, and leaves out columns without an output channel. Not inlined, since
// few launches need it.
template <typename Arguments>
__device__ __noinline__ void StoreInt8SumsOneByOne(const Arguments& arguments, const int32_t* sums, int32_t count,
                                                   int32_t row, int32_t column) {
  for (int32_t i = 0; i < count && column + i < arguments.out_channels; ++i) {
    const float value = arguments.epilogue.ValueOf(sums[i], row, column + i);
    const int64_t place = row * arguments.out_pitch + column + i;
    if (arguments.out_dtype == DType::kFloat32) {
      static_cast<float*>(arguments.out)[place] = value;
    } else if (arguments.out_dtype == DType::kFloat16) {
      static_cast<__half*>(arguments.out)[place] = __float2half_rn(value);
    } else {
      static_cast<uint8_t*>(arguments.out)[place] = RoundToByte(value, arguments.out_dtype == DType::kInt8);
    }
  }
}

// Stores the sums of a warp as WarpSumsStore does: 16 rows and 2 * kSums columns. Load must be called before Store.
// kReadsArrays: vectors are also stored fast where the epilogue's arrays are not kept. Narrow blocks, which seldom need
// it, have no registers to spare for it.
template <typename Arguments, int kSums, bool kReadsArrays>
class Int8SumsStore {
 public:
  __device__ void Load(const Arguments& arguments, const WarpRows& rows, int32_t first_column) {
    const bool is_read = arguments.epilogue.residual != nullptr && AreAllPlain(arguments);
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        residuals_[j][half] = {};
        if (!is_read || rows.rows[half] < 0 || ColumnOf(first_column, j) >= arguments.out_channels) continue;
        residuals_[j][half] = *reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(arguments.epilogue.residual) +
                                                              rows.rows[half] * arguments.epilogue.residual_pitch +
                                                              ColumnOf(first_column, j));
      }
    }
  }

  // kept: where the block keeps the epilogue's arrays in shared memory, 16-byte aligned; 0: nowhere.
  __device__ void Store(const Arguments& arguments, const int32_t (&sums)[kSums], const WarpRows& rows,
                        int32_t first_column, uint32_t kept) const {
    const bool are_kept = kept != 0 && first_column + 2 * kSums <= kKeptChannels;
    if (!AreAllPlain(arguments) || (!are_kept && !kReadsArrays)) {
      StoreAny(arguments, sums, rows, first_column);
    } else if (are_kept || !kReadsArrays) {
      StorePlain<true>(arguments, sums, rows, first_column, kept);
    } else if constexpr (kReadsArrays) {
      StorePlain<false>(arguments, sums, rows, first_column, kept);
    }
  }

  // Returns the value that a block keeps for a channel in shared memory. A missing array is 0 or 1.
  __device__ static float ValueToKeep(const Arguments& arguments, int array, int32_t channel) {
    const float* const from = ArrayOf(arguments, array);
    if (from != nullptr && channel < arguments.out_channels) return __ldg(from + channel);
    return array == kKeptBias ? 0.0f : 1.0f;
  }

 private:
  static constexpr int kCount = 8;
  static constexpr int kVectors = kSums / 16;
  static_assert(kSums % 16 == 0, "32 columns at a time");

  __device__ static const float* ArrayOf(const Arguments& arguments, int array) {
    if (array == kKeptMultiplier) return arguments.epilogue.multiplier;
    return array == kKeptBias ? arguments.epilogue.bias : arguments.epilogue.residual_scale;
  }

  // Returns true if every vector has 8 output channels or none and is stored whole, in 8 or 16 bits, the residual is in
  // 8 bits, the activation is none or ReLU, and the output's scale is part of the other arrays.
  __device__ static bool AreAllPlain(const Arguments& arguments) {
    const TypedInt8Epilogue& epilogue = arguments.epilogue;
    const ActivationFunction function = epilogue.activation.function;
    const bool has_bytes = epilogue.residual == nullptr || epilogue.residual_dtype == DType::kUint8 ||
                           epilogue.residual_dtype == DType::kInt8;
    return arguments.has_out_vectors && arguments.out_channels % kCount == 0 &&
           arguments.out_dtype != DType::kFloat32 && has_bytes && epilogue.inverse_scale == nullptr &&
           (function == ActivationFunction::kNone || function == ActivationFunction::kRelu);
  }

  template <bool kAreKept>
  __device__ void StorePlain(const Arguments& arguments, const int32_t (&sums)[kSums], const WarpRows& rows,
                             int32_t first_column, uint32_t kept) const {
    const auto store = [&](auto out) {
      using Out = decltype(out);
      if (arguments.epilogue.residual != nullptr) {
        StoreAs<Out, true, kAreKept>(arguments, sums, rows, first_column, kept);
      } else {
        StoreAs<Out, false, kAreKept>(arguments, sums, rows, first_column, kept);
      }
    };
    if (arguments.out_dtype == DType::kUint8) {
      store(uint8_t{});
    } else if (arguments.out_dtype == DType::kInt8) {
      store(int8_t{});
    } else {
      store(__half{});
    }
  }

  // Returns four neighbouring values of one of the epilogue's arrays. kAreKept: they are kept in shared memory.
  template <bool kAreKept>
  __device__ static float4 FourOf(const Arguments& arguments, KeptInt8Array array, int32_t channel, uint32_t kept) {
    if constexpr (kAreKept) {
      return LoadSharedFloats(kept + (array * kKeptChannels + channel) * static_cast<uint32_t>(sizeof(float)));
    }
    const float* const from = ArrayOf(arguments, array);
    if (from != nullptr && channel < arguments.out_channels) {
      return __ldg(reinterpret_cast<const float4*>(from + channel));
    }
    const float missing = array == kKeptBias ? 0.0f : 1.0f;
    return make_float4(missing, missing, missing, missing);
  }

  // With kept arrays this function does not branch, since a warp that stores waits for each of its instructions. It
  // avoids conversions that run on the unit of special functions (F2I and I2F of bytes), at a quarter of the rate of
  // others.
  template <typename Out, bool kHasResidual, bool kAreKept>
  __device__ void StoreAs(const Arguments& arguments, const int32_t (&sums)[kSums], const WarpRows& rows,
                          int32_t first_column, uint32_t kept) const {
    const bool has_relu = arguments.epilogue.activation.function == ActivationFunction::kRelu;
    // The least value that is stored. What is below 0 becomes 0 anyway in uint8.
    const float least = has_relu ? 0.0f : std::is_same_v<Out, int8_t> ? -127.0f : -INFINITY;
    // Bytes of int8 become those of uint8 if 128 is added.
    const bool is_signed = arguments.epilogue.residual_dtype == DType::kInt8;
    const uint32_t flip = is_signed ? 0x80808080u : 0;
    const float subtracted = is_signed ? kByteBase + 128.0f : kByteBase;
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int32_t column = ColumnOf(first_column, j);
      float values[2][kCount];
#pragma unroll
      for (int word = 0; word < 2; ++word) {
        const auto four_of = [&](KeptInt8Array array) {
          return FourOf<kAreKept>(arguments, array, column + 4 * word, kept);
        };
        const float4 multiplier = four_of(kKeptMultiplier), bias = four_of(kKeptBias);
        [[maybe_unused]] float4 residual_scale;
        if constexpr (kHasResidual) residual_scale = four_of(kKeptResidualScale);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t bytes = (word == 0 ? residuals_[j][half].x : residuals_[j][half].y) ^ flip;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int32_t sum = sums[(j * 4 + 2 * word + i / 2) * 4 + half * 2 + i % 2];
            float value = __fadd_rn(__fmul_rn(__int2float_rn(sum), At(multiplier, i)), At(bias, i));
            if constexpr (kHasResidual) {
              const float residual = __fsub_rn(AboveByteBase(bytes, i), subtracted);
              value = __fadd_rn(value, __fmul_rn(residual, At(residual_scale, i)));
            }
            values[half][4 * word + i] = value;
          }
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t row = column < arguments.out_channels ? rows.rows[half] : -1;
        StoreVector<Out>(arguments, values[half], least, row, column);
      }
    }
  }

  // 2^23: a float32 from here on has no fraction, and its lowest byte is that of the number above 2^23.
  static constexpr float kByteBase = 8388608.0f;

  // Returns kByteBase + byte i.
  __device__ static float AboveByteBase(uint32_t bytes, int i) {
    constexpr uint32_t kBits = 0x4b000000u;  // of kByteBase
    return __uint_as_float(__byte_perm(bytes, kBits, 0x7650u + static_cast<uint32_t>(i)));
  }

  // Stores the values of a thread, each of which is at least `least`. row: -1: nowhere.
  template <typename Out>
  __device__ static void StoreVector(const Arguments& arguments, const float (&values)[kCount], float least,
                                     int32_t row, int32_t column) {
    Pack<Out, kCount> pack;
    if constexpr (std::is_same_v<Out, __half>) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) pack.values[i] = __float2half_rn(values[i] < least ? least : values[i]);
    } else {
#pragma unroll
      for (int word = 0; word < 2; ++word) {
        reinterpret_cast<uint32_t*>(&pack)[word] = PackRounded<Out>(values + 4 * word, least);
      }
    }
    if (row < 0) return;
    *reinterpret_cast<Pack<Out, kCount>*>(static_cast<Out*>(arguments.out) + row * arguments.out_pitch + column) = pack;
  }

  __device__ void StoreAny(const Arguments& arguments, const int32_t (&sums)[kSums], const WarpRows& rows,
                           int32_t first_column) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int32_t column = ColumnOf(first_column, j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (rows.rows[half] < 0 || column >= arguments.out_channels) continue;
        int32_t copy[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) copy[i] = sums[(j * 4 + i / 2) * 4 + half * 2 + i % 2];
        StoreInt8SumsOneByOne(arguments, copy, kCount, rows.rows[half], column);
      }
    }
  }

  __device__ static float At(const float4& four, int i) {
    return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
  }
  __device__ static int32_t ColumnOf(int32_t first_column, int vector) {
    return first_column + vector * 32 + static_cast<int32_t>(threadIdx.x) % 4 * kCount;
  }

  uint2 residuals_[kVectors][2];
};

// Copies the epilogue's arrays into shared memory, at the address `kept`. A warp that stored a tile's sums would
// otherwise wait for the caches, since the arrays do not stay in the L1 cache. The first kThreads threads of the block
// call it. Returns the address; 0 if there are too many channels. Store: the class that reads the arrays.
template <typename Store, int kArrays, int kThreads, typename Arguments>
__device__ uint32_t KeepArrays(const Arguments& arguments, uint32_t kept) {
  if (arguments.out_channels > kKeptChannels) return 0;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < kKeptChannels; i += kThreads) {
#pragma unroll
    for (int array = 0; array < kArrays; ++array) {
      StoreSharedFloat(kept + (array * kKeptChannels + i) * static_cast<uint32_t>(sizeof(float)),
                       Store::ValueToKeep(arguments, array, i));
    }
  }
  SyncFirstThreads<kThreads>();
  return kept;
}

// How an implicit GEMM with factors of type T stores its sums.
template <typename T, int kSums, bool kMayLabel = false, bool kReadsArrays = false, bool kMayRotate = false>
using SumsStore = std::conditional_t<sizeof(T) == 1, Int8SumsStore<ImplicitGemmArguments<T>, kSums, kReadsArrays>,
                                     WarpSumsStore<T, kSums, kMayLabel, kMayRotate>>;

}  // namespace voxserve::kernels::cuda
