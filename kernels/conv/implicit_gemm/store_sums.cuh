#pragma once

// This header stores the float32 sums of the implicit GEMM kernels with their epilogue. Only .cu files include it.

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/conv/implicit_gemm/arguments.cuh"

namespace voxserve::kernels::cuda {

// Stores neighbouring sums of a row one by one, and leaves out columns without an output channel. Not inlined, since
// few tiles need it.
template <typename T>
__device__ __noinline__ void StoreSumsOneByOne(const ImplicitGemmArguments<T>& arguments, const float* sums,
                                               int32_t count, int32_t row, int32_t column) {
  for (int32_t i = 0; i < count && column + i < arguments.out_channels; ++i) {
    float sum[1] = {sums[i]};
    const int64_t place = row * arguments.out_pitch + column + i;
    if (arguments.is_out_float) {
      arguments.epilogue.Store(sum, row, column + i, static_cast<float*>(arguments.out) + place);
    } else {
      arguments.epilogue.Store(sum, row, column + i, static_cast<T*>(arguments.out) + place);
    }
  }
}

// The two output rows of which a thread holds sums; -1: there is no row. They are rows g and g + 8 of its warp's 16
// rows, where g = lane / 4 (tensor_cores.cuh).
struct WarpRows {
  int32_t rows[2];
};

// Returns the output rows of the calling thread among the 16 places (tiles.h) that begin with `first`.
template <typename T>
__device__ WarpRows WarpRowsOf(const ImplicitGemmArguments<T>& arguments, int64_t first, int64_t num_out) {
  const int64_t place = first + static_cast<int32_t>(threadIdx.x) % 32 / 4;
  return {{OutRowOf(arguments, place, num_out), OutRowOf(arguments, place + 8, num_out)}};
}

// Stores the sums of a warp: 16 rows and 2 * kSums columns. In every 32 columns, a thread holds two columns of each
// eight, for two rows. The weights are packed so that these are eight neighbouring output channels (PackedColumn). Load
// must be called before Store: it starts the loads of the residuals, which arrive while the caller does other work.
// kMayLabel: a warp's columns may be all channels of its rows; it then stores labels if the launch asks for them.
// kMayRotate: the launch may ask for a rotation.
template <typename T, int kSums, bool kMayLabel = false, bool kMayRotate = false>
class WarpSumsStore {
 public:
  __device__ void Load(const ImplicitGemmArguments<T>& arguments, const WarpRows& rows, int32_t first_column) {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int32_t column = ColumnOf(first_column, j);
      const bool is_wide = IsWide(arguments, column);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        residuals_[j][half] = {};
        if (arguments.epilogue.residual != nullptr && is_wide && rows.rows[half] >= 0) {
          residuals_[j][half] = WordsOf(arguments.epilogue.template LoadResidual<kCount>(rows.rows[half], column));
        }
      }
    }
    if constexpr (kMayRotate) {
      const int32_t column = ColumnOf(first_column, 0);
      const int32_t pair = arguments.angles == nullptr ? 0 : column / 2 % arguments.head_pairs;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        first_angles_[half] = make_float2(0, 1);
        if (column < arguments.rotated_columns && rows.rows[half] >= 0) {
          first_angles_[half] = arguments.angles[rows.rows[half] * arguments.angles_pitch + pair];
        }
      }
    }
  }

  // Returns the value that a block keeps for a channel in shared memory. There is one array, the bias.
  __device__ static float ValueToKeep(const ImplicitGemmArguments<T>& arguments, int, int32_t channel) {
    const bool is_there = arguments.epilogue.bias != nullptr && channel < arguments.out_channels;
    return is_there ? __ldg(arguments.epilogue.bias + channel) : 0.0f;
  }

  // kept_bias: where the block keeps the bias in shared memory, 16-byte aligned, with zeros after its last value and
  // in place of a missing bias; 0: nowhere, so it is read from global memory.
  __device__ void Store(const ImplicitGemmArguments<T>& arguments, const float (&sums)[kSums], const WarpRows& rows,
                        int32_t first_column, uint32_t kept_bias = 0) const {
    if constexpr (kMayLabel) {
      if (arguments.labels != nullptr) {
        StoreLabels(arguments, sums, rows, kept_bias);
        return;
      }
    }
    if constexpr (kMayRotate) {
      if (first_column < arguments.rotated_columns) {
        StoreRotated(arguments, sums, rows, first_column, kept_bias);
        return;
      }
    }
    const bool has_residual = arguments.epilogue.residual != nullptr;
    const bool is_gelu = arguments.epilogue.activation.function == ActivationFunction::kGelu;
    if constexpr (sizeof(T) < sizeof(float)) {
      if (arguments.is_out_float && !has_residual && HasPlainActivation(arguments) && !is_gelu &&
          arguments.has_out_vectors && arguments.out_channels % kCount == 0) {
        StorePlain<float, false, false>(arguments, sums, rows, first_column, kept_bias);
        return;
      }
    }
    if (!AreAllPlain(arguments, first_column) || (is_gelu && has_residual)) {
      StoreAny(arguments, sums, rows, first_column, kept_bias);
    } else if (is_gelu) {
      StorePlain<T, false, true>(arguments, sums, rows, first_column, kept_bias);
    } else if (has_residual) {
      StorePlain<T, true, false>(arguments, sums, rows, first_column, kept_bias);
    } else {
      StorePlain<T, false, false>(arguments, sums, rows, first_column, kept_bias);
    }
  }

 private:
  static constexpr int kCount = 8;
  static constexpr int kVectors = kSums / 16;
  static_assert(kSums % 16 == 0, "32 columns at a time");
  static_assert(!kMayRotate || sizeof(T) < sizeof(float));

  // Returns true if all vectors are stored whole in type T and StorePlain knows the activation. All threads of a warp
  // get the same answer.
  __device__ static bool AreAllPlain(const ImplicitGemmArguments<T>& arguments, int32_t first_column) {
    return IsWide(arguments, first_column + 2 * kSums - kCount) && HasPlainActivation(arguments);
  }
  __device__ static bool HasPlainActivation(const ImplicitGemmArguments<T>& arguments) {
    const ActivationFunction function = arguments.epilogue.activation.function;
    return function == ActivationFunction::kNone || function == ActivationFunction::kRelu ||
           function == ActivationFunction::kGelu;
  }

  // Returns the larger value, or NaN if one of them is NaN.
  __device__ static float Larger(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
  }

  // This function branches as little as possible, since a warp that stores waits for each of its instructions. If Out
  // is not T, some vectors may lie after the last output channel; they are left out.
  template <typename Out, bool kHasResidual, bool kIsGelu>
  __device__ void StorePlain(const ImplicitGemmArguments<T>& arguments, const float (&sums)[kSums],
                             const WarpRows& rows, int32_t first_column, uint32_t kept_bias) const {
    const float least = arguments.epilogue.activation.function == ActivationFunction::kRelu ? 0.0f : -INFINITY;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Out* const to =
          static_cast<Out*>(arguments.out) + rows.rows[half] * arguments.out_pitch + ColumnOf(first_column, 0);
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        const int32_t column = ColumnOf(first_column, j);
        if (!std::is_same_v<Out, T> && column >= arguments.out_channels) continue;
        const Pack<float, kCount> bias = LoadBias(arguments, column, kept_bias);
        const auto& residual = reinterpret_cast<const Pack<T, kCount>&>(residuals_[j][half]);
        Pack<Out, kCount> result;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          float value = sums[(j * 4 + i / 2) * 4 + half * 2 + i % 2] + bias.values[i];
          if constexpr (kHasResidual) value += ToFloat(residual.values[i]);
          result.values[i] = FromFloat<Out>(kIsGelu ? Gelu16(value) : Larger(value, least));
        }
        if (rows.rows[half] >= 0) *reinterpret_cast<Pack<Out, kCount>*>(to + j * 32) = result;
      }
    }
  }

  __device__ void StoreAny(const ImplicitGemmArguments<T>& arguments, const float (&sums)[kSums], const WarpRows& rows,
                           int32_t first_column, uint32_t kept_bias) const {
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int32_t column = ColumnOf(first_column, j);
      const bool is_wide = IsWide(arguments, column);
      const Pack<float, kCount> bias = is_wide ? LoadBias(arguments, column, kept_bias) : Pack<float, kCount>{};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float values[kCount];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          values[2 * i] = sums[(j * 4 + i) * 4 + half * 2];
          values[2 * i + 1] = sums[(j * 4 + i) * 4 + half * 2 + 1];
        }
        const int32_t row = rows.rows[half];
        if (row < 0 || column >= arguments.out_channels) continue;
        if (is_wide) {
          arguments.epilogue.Finish(values, bias, reinterpret_cast<const Pack<T, kCount>&>(residuals_[j][half]),
                                    static_cast<T*>(arguments.out) + row * arguments.out_pitch + column);
        } else {
          float copy[kCount];
#pragma unroll
          for (int i = 0; i < kCount; ++i) copy[i] = values[i];
          StoreSumsOneByOne(arguments, copy, kCount, row, column);
        }
      }
    }
  }

  // Rotates pairs of sums (PairRotation) and stores the sums. Some of the columns may not be rotated, or lie after the
  // last output channel. A thread's eight columns are four pairs, whose angles lie beside each other in the table.
  __device__ void StoreRotated(const ImplicitGemmArguments<T>& arguments, const float (&sums)[kSums],
                               const WarpRows& rows, int32_t first_column, uint32_t kept_bias) const {
    const int32_t head_pairs = arguments.head_pairs, pairs_to_next = 16 % head_pairs;
    int32_t pair = ColumnOf(first_column, 0) / 2 % head_pairs;  // the first one's place in its head
#pragma unroll
    for (int j = 0; j < kVectors; ++j) {
      const int32_t column = ColumnOf(first_column, j);
      const bool is_wide = IsWide(arguments, column);
      float bias[kCount];
      if (is_wide) {
        const Pack<float, kCount> wide = LoadBias(arguments, column, kept_bias);
#pragma unroll
        for (int i = 0; i < kCount; ++i) bias[i] = wide.values[i];
      } else {
#pragma unroll
        for (int i = 0; i < kCount; ++i) bias[i] = ValueToKeep(arguments, 0, column + i);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t row = rows.rows[half];
        if (row < 0) continue;
        const float2* const angles = arguments.angles + row * arguments.angles_pitch + pair;
        Pack<T, kCount> result;
#pragma unroll
        for (int i = 0; i < kCount; i += 2) {
          const float u = sums[(j * 4 + i / 2) * 4 + half * 2] + bias[i];
          const float v = sums[(j * 4 + i / 2) * 4 + half * 2 + 1] + bias[i + 1];
          const bool is_rotated = column + i < arguments.rotated_columns;
          float2 angle = make_float2(0, 1);  // sine and cosine
          if (j == 0 && i == 0) {
            angle = first_angles_[half];
          } else if (is_rotated) {
            angle = angles[i / 2];
          }
          // Columns that are not rotated keep their sums: a product of infinity and 0 would be NaN. Where to round is
          // not left to the compiler, since a row's bytes must not depend on the block.
          const float of_u = __fmaf_rn(u, angle.y, -__fmul_rn(v, angle.x));
          const float of_v = __fmaf_rn(v, angle.y, __fmul_rn(u, angle.x));
          result.values[i] = FromFloat<T>(is_rotated ? of_u : u);
          result.values[i + 1] = FromFloat<T>(is_rotated ? of_v : v);
        }
        T* const to = static_cast<T*>(arguments.out) + row * arguments.out_pitch + column;
        if (is_wide) {
          *reinterpret_cast<Pack<T, kCount>*>(to) = result;
        } else {
#pragma unroll
          for (int i = 0; i < kCount; ++i) {
            if (column + i < arguments.out_channels) to[i] = result.values[i];
          }
        }
      }
      pair += pairs_to_next;
      if (pair >= head_pairs) pair -= head_pairs;
    }
  }

  // Stores the labels of the thread's two rows. Four threads hold the sums of a row. The code has few branches, and the
  // two rows' instructions alternate, since products wait for the warps that store.
  __device__ static void StoreLabels(const ImplicitGemmArguments<T>& arguments, const float (&sums)[kSums],
                                     const WarpRows& rows, uint32_t kept_bias) {
    static_assert(!kMayLabel || kVectors == 1, "a thread holds eight channels of each row");
    const int32_t first_channel = InRow() * kCount;
    const int32_t num_channels = arguments.out_channels - first_channel;  // of this thread; may be above kCount
    float bias[kCount];
    if (kept_bias != 0) {
      const Pack<float, kCount> kept = LoadKeptBias(kept_bias, first_channel);
#pragma unroll
      for (int i = 0; i < kCount; ++i) bias[i] = kept.values[i];
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const bool is_read = arguments.epilogue.bias != nullptr && i < num_channels;
        bias[i] = is_read ? __ldg(arguments.epilogue.bias + first_channel + i) : 0.0f;
      }
    }
    float largest[2];
    uint32_t are_not_finite[2];  // by lane
    float values[2][kCount];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      largest[half] = -INFINITY;
      float zero = 0;  // becomes NaN if a value is not finite
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float value = sums[i / 2 * 4 + half * 2 + i % 2] + bias[i];
        values[half][i] = i < num_channels ? value : -INFINITY;
        zero = fmaf(i < num_channels ? value : 0.0f, 0.0f, zero);
        largest[half] = fmaxf(largest[half], values[half][i]);
      }
      are_not_finite[half] = __ballot_sync(~0u, zero != 0.0f);
    }
#pragma unroll
    for (int distance = 2; distance > 0; distance /= 2) {
#pragma unroll
      for (float& value : largest) value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
    }
    int32_t label[2];  // the first channel with the largest value
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      label[half] = kMaxLabelChannels;
#pragma unroll
      for (int i = kCount - 1; i >= 0; --i) {
        if (values[half][i] == largest[half]) label[half] = first_channel + i;
      }
    }
#pragma unroll
    for (int distance = 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int32_t& channel : label) channel = min(channel, __shfl_xor_sync(~0u, channel, distance));
    }
    if (InRow() != 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (rows.rows[half] < 0) continue;
      const bool is_finite = (are_not_finite[half] >> threadIdx.x % kWarpThreads & 0xf) == 0;
      const int32_t stored = is_finite ? label[half] : arguments.not_finite_label;
      if (arguments.has_wide_labels) {
        static_cast<uint16_t*>(arguments.labels)[rows.rows[half]] = static_cast<uint16_t>(stored);
      } else {
        static_cast<uint8_t*>(arguments.labels)[rows.rows[half]] = static_cast<uint8_t>(stored);
      }
    }
  }

  __device__ static int32_t InRow() { return static_cast<int32_t>(threadIdx.x) % 4; }
  __device__ static int32_t ColumnOf(int32_t first_column, int vector) {
    return first_column + vector * 32 + InRow() * kCount;
  }

  // Returns the bias of a vector that is stored whole; zeros if there is none.
  __device__ static Pack<float, kCount> LoadBias(const ImplicitGemmArguments<T>& arguments, int32_t column,
                                                 uint32_t kept_bias) {
    if (kept_bias != 0) return LoadKeptBias(kept_bias, column);
    if (arguments.epilogue.bias == nullptr) return {};
    return arguments.epilogue.template LoadBias<kCount>(column);
  }

  __device__ static Pack<float, kCount> LoadKeptBias(uint32_t kept_bias, int32_t column) {
    Pack<float, kCount> bias;
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                   : "=f"(bias.values[i]), "=f"(bias.values[i + 1]), "=f"(bias.values[i + 2]), "=f"(bias.values[i + 3])
                   : "r"(kept_bias + (column + i) * static_cast<uint32_t>(sizeof(float))));
    }
    return bias;
  }

  // Returns true if the vector that begins at `column` is stored whole.
  __device__ static bool IsWide(const ImplicitGemmArguments<T>& arguments, int32_t column) {
    return arguments.has_out_vectors && !arguments.is_out_float && column + kCount <= arguments.out_channels;
  }

  // Residuals are packed in 32-bit words, since single values of 16 bits would take a register each.
  using Words = Pack<uint32_t, kCount* static_cast<int>(sizeof(T)) / 4>;
  __device__ static Words WordsOf(const Pack<T, kCount>& values) { return reinterpret_cast<const Words&>(values); }

  Words residuals_[kVectors][2];
  // The angle of the thread's first pair in both rows. It is loaded ahead of the others, which then mostly lie in the
  // L1 cache.
  float2 first_angles_[2];
};

}  // namespace voxserve::kernels::cuda
