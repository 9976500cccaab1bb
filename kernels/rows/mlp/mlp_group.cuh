#pragma once

// The work of a warp group in Mlp's kernel (mlp.cuh). Only .cu files include this header.

#include <cstdint>

#include "kernels/core/barriers.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_chunks.cuh"
#include "kernels/core/row_launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/core/warp_group_products.cuh"
#include "kernels/rows/mlp/mlp.h"
#include "kernels/rows/mlp/mlp_layout.h"
#include "kernels/rows/mlp/mlp_sizes.cuh"

namespace voxserve::kernels::cuda {

// GELU as x / (1 + 2^q(x)): 2^q is the ratio of the normal distribution's two tails, (1 - P(x)) / P(x), and q an odd
// polynomial that was fitted to its logarithm. The absolute error is below 1e-6, the relative one below 2^-13 where the
// result is above 2^-10. It takes fewer instructions than Gelu16 (epilogue.cuh). NaN stays NaN.
__device__ inline float MlpGelu(float x) {
  const float square = x * x;
  float q = fmaf(-5.21078944e-09f, square, 3.85084529e-07f);
  q = fmaf(q, square, -1.14530733e-05f);
  q = fmaf(q, square, 1.59394137e-04f);
  q = fmaf(q, square, 9.55771436e-05f);
  q = fmaf(q, square, -1.04838560e-01f);
  q = fmaf(q, square, -2.30220721e+00f);
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(q * x));
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(inverse) : "f"(1.0f + power));
  return x * inverse;
}

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// kIsWhole: input and output have all of the kernel's channels, none of them padded.
//
// A thread's part of a tile: rows g and g + 8 of its warp's 16 rows, and of each 32 channels those from 8 t on.
template <typename T, int kIn, int kOut, bool kIsWhole>
class MlpGroup {
  using Sizes = MlpSizes<kIn, kOut>;

 public:
  __device__ MlpGroup(const MlpParams& params, const MlpRing& first, const MlpRing& second, int32_t stages,
                      uint32_t inputs, const float* hidden_bias, int32_t group)
      : params_(params),
        first_(first),
        second_(second),
        stages_(stages),
        num_chunks_((params.hidden_channels + kMlpChunk - 1) / kMlpChunk),
        hidden_bias_(hidden_bias),
        group_(group),
        warp_(static_cast<int32_t>(threadIdx.x) / kWarpThreads % 4),
        g_(static_cast<int32_t>(threadIdx.x) % kWarpThreads / 4),
        t_(static_cast<int32_t>(threadIdx.x) % 4),
        input_(inputs + group_ * Sizes::kInputBytes),
        input_place_(input_ + (warp_ * 16 + g_) * 128 + g_ * 16 + 4 * t_) {}

  __device__ void Run() {
    num_rows_ = NumRows(params_.out.capacity, params_.out.num_rows);
    const int64_t num_tiles = (num_rows_ + Sizes::kTileRows - 1) / Sizes::kTileRows;
    const int64_t round_tiles = int64_t{gridDim.x} * Sizes::kGroups;
    for (int64_t of_first_group = blockIdx.x; of_first_group < num_tiles; of_first_group += round_tiles) {
      const int64_t tile = of_first_group + int64_t{gridDim.x} * group_;
      if (tile < num_tiles) {
        Compute(tile * Sizes::kTileRows + warp_ * 16 + g_);
      } else if (!AreResident()) {
        PassChunks();
      }
    }
  }

 private:
  __device__ bool AreResident() const { return num_chunks_ <= stages_; }
  __device__ bool IsFirstLane() const { return threadIdx.x % kWarpThreads == 0; }

  // Lets the block's other warp groups go through the ring.
  __device__ void PassChunks() {
    for (int32_t chunk = 0; chunk < num_chunks_; ++chunk) {
      AwaitStage(first_, at_first_);
      __syncwarp();  // no lane still waits for this phase when the next one is copied
      LeaveStage(first_, at_first_);
      AwaitStage(second_, at_second_);
      __syncwarp();
      LeaveStage(second_, at_second_);
    }
  }
  // A stage that is copied once stays in the phase after it.
  __device__ void AwaitStage(const MlpRing& ring, const MlpStage& at) const {
    WaitForBarrier(ring.Full(at.stage), AreResident() ? 0 : at.parity);
  }
  // The warp's products have read the stage.
  __device__ void LeaveStage(const MlpRing& ring, MlpStage& at) const {
    if (!AreResident() && IsFirstLane()) ArriveAtBarrier(ring.Empty(at.stage));
    at.Advance(stages_);
  }

  // row: the thread's first row.
  __device__ void Compute(int64_t row) {
    // The input's tile as first factor of products, where it is in registers.
    uint32_t input[Sizes::kSharesInput ? 1 : kIn / 16][4];
    LoadInput(row, input);
    float sums[kOut / 2];
#pragma unroll
    for (float& sum : sums) sum = 0;
    float hidden_sums[kMlpChunk / 2];
    uint32_t hidden[kMlpChunk / 16][4];
    StartHidden(input, hidden_sums);
    WaitForProducts<0>();
    HoldBackReads(hidden_sums);
    LeaveStage(first_, at_first_);
    Activate(0, hidden_sums);
    RoundToFactors<T>(hidden_sums, hidden);
    for (int32_t chunk = 1; chunk < num_chunks_; ++chunk) {
      StartHidden(input, hidden_sums);
      StartSums(hidden, sums);
      WaitForProducts<1>();
      HoldBackReads(hidden_sums);
      LeaveStage(first_, at_first_);
      Activate(chunk, hidden_sums);
      WaitForProducts<0>();
      HoldBackReads(hidden_sums);  // they are rounded into the registers that the product has read
      LeaveStage(second_, at_second_);
      RoundToFactors<T>(hidden_sums, hidden);
    }
    StartSums(hidden, sums);
    WaitForProducts<0>();
    HoldBackReads(sums);
    LeaveStage(second_, at_second_);
    Finish(row, input, sums);
  }

  __device__ void StartHidden(const uint32_t (&input)[Sizes::kSharesInput ? 1 : kIn / 16][4],
                              float (&hidden_sums)[kMlpChunk / 2]) {
    constexpr int kRowBytes = MlpFirstRowBytes(kIn);
    constexpr int kSteps = kRowBytes / 32;  // of a slice
    AwaitStage(first_, at_first_);
    const uint32_t weights = first_.Stage(at_first_.stage);
    BeginProducts();
#pragma unroll
    for (int step = 0; step < kIn / 16; ++step) {
      const uint32_t place = step / kSteps * kMlpChunk * kRowBytes + step % kSteps * 32;
      const uint64_t second = SwizzledMatrix<kRowBytes>(weights + place);
      if constexpr (Sizes::kSharesInput) {
        MultiplyAddGroup<T>(hidden_sums, SwizzledMatrix(input_ + place), second, step > 0);
      } else {
        MultiplyAddGroup<T>(hidden_sums, input[step], second, step > 0);
      }
    }
    CommitProducts();
  }

  __device__ void StartSums(const uint32_t (&hidden)[kMlpChunk / 16][4], float (&sums)[kOut / 2]) {
    AwaitStage(second_, at_second_);
    const uint32_t weights = second_.Stage(at_second_.stage);
    BeginProducts();
#pragma unroll
    for (int step = 0; step < kMlpChunk / 16; ++step) {
      MultiplyAddGroup<T>(sums, hidden[step], SwizzledMatrix(weights + step * 32));
    }
    CommitProducts();
  }

  __device__ void Activate(int32_t chunk, float (&values)[kMlpChunk / 2]) const {
    const float* const bias = hidden_bias_ + chunk * kMlpChunk + 2 * t_;
    const auto for_each = [&](const auto& activate) {
#pragma unroll
      for (int j = 0; j < kMlpChunk / 8; ++j) {
        const float2 of_columns = *reinterpret_cast<const float2*>(bias + 8 * j);
        values[4 * j] = activate(values[4 * j] + of_columns.x);
        values[4 * j + 1] = activate(values[4 * j + 1] + of_columns.y);
        values[4 * j + 2] = activate(values[4 * j + 2] + of_columns.x);
        values[4 * j + 3] = activate(values[4 * j + 3] + of_columns.y);
      }
    };
    if (params_.activation == ActivationFunction::kGelu) {
      for_each([](float value) { return MlpGelu(value); });
    } else {
      for_each([](float value) { return value < 0.0f ? 0.0f : value; });
    }
  }

  // Returns the thread's row `half` of the matrix; null if there is none.
  __device__ const T* RowOf(const ConstRows& rows, int64_t row, int half) const {
    row += 8 * half;
    return row < num_rows_ ? static_cast<const T*>(rows.data) + row * rows.pitch : nullptr;
  }
  // Returns true if the row has the thread's channel `i` of group q, and all channels before it.
  __device__ bool Has(int32_t channels, int q, int i) const { return kIsWhole || 32 * q + 8 * t_ + i < channels; }
  // Loads the thread's channels of group q, as pairs. Returns zeros if there is none of them, or, for a null `row`, no
  // row. Behind the row's last channel are any values.
  __device__ Pack<uint32_t, 4> LoadVector(const T* row, int q, int32_t channels) const {
    Pack<uint32_t, 4> pairs = {};
    if (row != nullptr && Has(channels, q, 0)) {
      pairs = LoadPack<4>(reinterpret_cast<const uint32_t*>(row + 32 * q + 8 * t_));
    }
    return pairs;
  }
  // Sets the values of LoadVector behind the row's last channel to 0.
  __device__ void ClearBehind(int q, int32_t channels, Pack<uint32_t, 4>& pairs) const {
    if (Has(channels, q, 7)) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!Has(channels, q, 2 * i)) {
        pairs.values[i] = 0;
      } else if (!Has(channels, q, 2 * i + 1)) {
        pairs.values[i] &= 0xffffu;
      }
    }
  }
  // Returns the thread's values of group q of an array by channel.
  __device__ Pack<float, 8> LoadOfChannels(const float* values, int q) const {
    return LoadConstantPack<8>(values + 32 * q + 8 * t_);
  }

  // Adds up over a thread's four parts of a row, and over the four threads that share the row. These all get the same
  // bits.
  __device__ static float SumOfRow(const float (&parts)[4]) {
    float sum = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    sum += __shfl_xor_sync(~0u, sum, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
  }
  // Normalises the thread's values of both of its rows: value_of(half, q, i) is channel i of group q. Calls store(half,
  // q, values) for each group. Padded channels count for nothing; zeros in them become zeros.
  template <int kPadded, typename ValueOf, typename Store>
  __device__ void Normalize(const MlpNorm& norm, int32_t channels, const ValueOf& value_of, const Store& store) const {
    const float a_channel = __frcp_rn(static_cast<float>(channels));
    float means[2], scales[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float parts[4] = {};
#pragma unroll
      for (int q = 0; q < kPadded / 32; ++q) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (Has(channels, q, i)) parts[i % 4] += value_of(half, q, i);
        }
      }
      means[half] = SumOfRow(parts) * a_channel;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float parts[4] = {};
#pragma unroll
      for (int q = 0; q < kPadded / 32; ++q) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float difference = value_of(half, q, i) - means[half];
          if (Has(channels, q, i)) parts[i % 4] += difference * difference;
        }
      }
      scales[half] = rsqrtf(SumOfRow(parts) * a_channel + norm.epsilon);
    }
#pragma unroll
    for (int q = 0; q < kPadded / 32; ++q) {
      const Pack<float, 8> weights = LoadOfChannels(norm.weight, q), biases = LoadOfChannels(norm.bias, q);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          values[i] = (value_of(half, q, i) - means[half]) * scales[half] * weights.values[i] + biases.values[i];
        }
        store(half, q, values);
      }
    }
  }

  // Returns where the thread's channels 2 i and 2 i + 1 of group q of its row `half` lie in the input's tile. They are
  // in vector q % 2 * 4 + i of the row of 128 bytes, whose place is the vector's number ^ g.
  __device__ uint32_t InputPlace(int half, int q, int i) const {
    return (input_place_ ^ (q % 2 * 4 + i) * 16) + q / 2 * Sizes::kTileRows * 128 + half * 8 * 128;
  }

  // Loads and normalises the tile, and brings it where the first product reads it.
  __device__ void LoadInput(int64_t row, uint32_t (&input)[Sizes::kSharesInput ? 1 : kIn / 16][4]) {
    const int32_t channels = params_.in.channels;
    Pack<uint32_t, 4> loaded[2][kIn / 32];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const T* const from = RowOf(params_.in, row, half);
#pragma unroll
      for (int q = 0; q < kIn / 32; ++q) loaded[half][q] = LoadVector(from, q, channels);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int q = 0; q < kIn / 32; ++q) ClearBehind(q, channels, loaded[half][q]);
    }
    // The group's earlier products have read its tile.
    if constexpr (Sizes::kSharesInput) SyncGroup();
    const auto store = [&](int half, int q, const Pack<uint32_t, 4>& pairs) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (Sizes::kSharesInput) {
          asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(InputPlace(half, q, i)), "r"(pairs.values[i]) : "memory");
        } else {
          input[2 * q + i / 2][2 * (i % 2) + half] = pairs.values[i];
        }
      }
    };
    if (params_.input_norm.weight == nullptr) {
#pragma unroll
      for (int q = 0; q < kIn / 32; ++q) {
        store(0, q, loaded[0][q]);
        store(1, q, loaded[1][q]);
      }
    } else {
      Normalize<kIn>(
          params_.input_norm, channels, [&](int half, int q, int i) { return ValueOf<T, 8>(loaded[half][q], i); },
          [&](int half, int q, const float(&values)[8]) { store(half, q, RoundVector(values)); });
    }
    if constexpr (Sizes::kSharesInput) {
      PublishToProducts();
      SyncGroup();
    }
  }
  __device__ static Pack<uint32_t, 4> RoundVector(const float (&values)[8]) {
    Pack<uint32_t, 4> pairs;
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs.values[i] = RoundPair<T>(values[2 * i], values[2 * i + 1]);
    return pairs;
  }
  __device__ void SyncGroup() const {
    asm volatile("bar.sync %0, %1;\n" ::"r"(1 + group_), "n"(Sizes::kGroupThreads) : "memory");
  }

  // Returns the thread's channels of group q of its row `half` of y (mlp.h).
  __device__ Pack<uint32_t, 4> NormedInput(const uint32_t (&input)[Sizes::kSharesInput ? 1 : kIn / 16][4], int half,
                                           int q) const {
    Pack<uint32_t, 4> pairs;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Sizes::kSharesInput) {
        asm volatile("ld.shared.b32 %0, [%1];\n" : "=r"(pairs.values[i]) : "r"(InputPlace(half, q, i)) : "memory");
      } else {
        pairs.values[i] = input[2 * q + i / 2][2 * (i % 2) + half];
      }
    }
    return pairs;
  }

  // Completes and stores the tile's results.
  __device__ void Finish(int64_t row, const uint32_t (&input)[Sizes::kSharesInput ? 1 : kIn / 16][4],
                         float (&sums)[kOut / 2]) const {
    const int32_t channels = params_.out.channels;
    const auto at = [&](int half, int q, int i) -> float& { return sums[16 * q + 4 * (i / 2) + 2 * half + i % 2]; };
    const auto add = [&](const auto& vector_of) {
#pragma unroll
      for (int q = 0; q < kOut / 32; ++q) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Pack<uint32_t, 4> values = vector_of(half, q);
#pragma unroll
          for (int i = 0; i < 8; ++i) at(half, q, i) += ValueOf<T, 8>(values, i);
        }
      }
    };
#pragma unroll
    for (int q = 0; q < kOut / 32; ++q) {
      const Pack<float, 8> biases = LoadOfChannels(params_.bias, q);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        at(0, q, i) += biases.values[i];
        at(1, q, i) += biases.values[i];
      }
    }
    if constexpr (kIn == kOut) {
      if (params_.adds_normed_input) add([&](int half, int q) { return NormedInput(input, half, q); });
    }
    for (int32_t n = 0;; ++n) {
      const ConstRows& added = n == 0 ? params_.residual : params_.norms[n - 1].residual;
      if (added.data != nullptr) {
        const T* const rows[2] = {RowOf(added, row, 0), RowOf(added, row, 1)};
        add([&](int half, int q) { return LoadVector(rows[half], q, channels); });
      }
      if (n == params_.num_norms) break;
      Normalize<kOut>(params_.norms[n], channels, at, [&](int half, int q, const float(&values)[8]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) at(half, q, i) = values[i];
      });
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half >= num_rows_) continue;
      T* const out = static_cast<T*>(params_.out.data) + (row + 8 * half) * params_.out.pitch + 8 * t_;
#pragma unroll
      for (int q = 0; q < kOut / 32; ++q) {
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = at(half, q, i);
        if (Has(channels, q, 7)) {
          *reinterpret_cast<Pack<uint32_t, 4>*>(out + 32 * q) = RoundVector(values);
        } else {
#pragma unroll
          for (int i = 0; i < 7; ++i) {
            if (Has(channels, q, i)) out[32 * q + i] = FromFloat<T>(values[i]);
          }
        }
      }
    }
  }

  const MlpParams& params_;
  const MlpRing first_, second_;
  const int32_t stages_, num_chunks_;
  const float* const hidden_bias_;  // in shared memory
  const int32_t group_, warp_, g_, t_;
  const uint32_t input_;        // the group's tile of the input in shared memory
  const uint32_t input_place_;  // of the thread's first row there, and of vector 0 (InputPlace)
  int64_t num_rows_ = 0;
  MlpStage at_first_, at_second_;
};

#endif  // VOXSERVE_HAS_WARP_GROUP_PRODUCTS

}  // namespace voxserve::kernels::cuda
