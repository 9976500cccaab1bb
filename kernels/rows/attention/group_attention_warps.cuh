#pragma once

// WarpAttention computes attention of kRows queries of one head within one group (group_attention.h) with the
// tensor core instructions of one warp. It serves float16 and bfloat16. Only .cu files include this header.
//
// The keys and values of the group are in shared memory. The warp takes kStepKeys keys at a time: scores = queries
// keys^T, weights = exp2(scores - reference), sums += weights values. The weights are rounded to the type of the
// values, and products with ones add up the rounded weights.
//
// With 16 channels, a score costs 64 operations of the tensor cores and one exponential, of which a multiprocessor of
// sm_90 computes only 16 a clock. So exponentials and the other instructions that each score needs limit the speed:
// - Some exponentials are a polynomial on the FMA units (T. Zadouri et al., "FlashAttention-4", arXiv 2603.05451).
//   The others use the special function unit.
// - There is no running maximum. A row's reference is the largest score of the first kSampleKeys keys. It need not be
//   the row's maximum: weights must only not overflow. If a row's sum of weights shows that a score is far above the
//   reference, the caller sets the reference to the row's maximum and computes the row again.
// - The polynomial has no clamps. The lengths of queries and keys bound the scores (Cauchy and Schwarz). If the bound
//   is too large, or not finite, the special function unit computes all exponentials.

#include <cstdint>
#include <type_traits>

#include "kernels/core/launch.cuh"
#include "kernels/core/tensor_cores.cuh"
#include "kernels/core/warp_group_products.cuh"

namespace voxserve::kernels::cuda {

inline constexpr int32_t kStepKeys = 16;
inline constexpr int32_t kSampleKeys = 32;
inline constexpr int32_t kPolynomialScores = 5;  // of 16

// The layout of a head's keys or values in shared memory. A row has whole vectors of 16 bytes, of which 8 neighbouring
// rows have theirs in different banks: if the number of vectors is a power of two, their places are swizzled.
template <int kChannels>
struct HeadRows {
  static constexpr int32_t kVectors = kChannels / 8;
  static constexpr int32_t kPitch = kVectors * 16;
  static constexpr bool kIsSwizzled = kVectors % 2 == 0;
  static_assert(kVectors == 2 || kVectors == 3 || kVectors == 4);

  // Returns the offset of a vector.
  __device__ static int32_t Offset(int32_t row, int32_t vector) {
    return row * kPitch + (kIsSwizzled ? vector ^ (row / (8 / kVectors) % kVectors) : vector) * 16;
  }
};

// The same as matrices of 8 rows and one vector (PlainMatrix in warp_group_products.cuh), whose vectors are in
// different banks: first the matrices of rows 0 to 7, then those of the next 8 rows.
template <int kChannels>
struct HeadMatrices {
  static constexpr int32_t kVectors = kChannels / 8;
  static constexpr int32_t kPitch = kVectors * 16;  // bytes of a row; eight times as many lead to the next 8 rows
  static constexpr int32_t kMatrixBytes = 8 * 16;

  __device__ static int32_t Offset(int32_t row, int32_t vector) {
    return row / 8 * 8 * kPitch + vector * kMatrixBytes + row % 8 * 16;
  }
};

__device__ inline float Exp2(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(value));
  return power;
}

// Returns 1 / value with an error of one unit in the last place. Subnormal values count as 0.
__device__ inline float Reciprocal(float value) {
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(reciprocal) : "f"(value));
  return reciprocal;
}

// A pair of values of 16 bits in a register.
template <typename T>
struct PairOf;
template <>
struct PairOf<__half> {
  using Type = __half2;
  static constexpr uint32_t kOnes = 0x3c003c00;
};
template <>
struct PairOf<__nv_bfloat16> {
  using Type = __nv_bfloat162;
  static constexpr uint32_t kOnes = 0x3f803f80;
};

// Returns the largest of values that are not negative, or NaN if one is NaN. All lanes of the warp call it.
__device__ inline float LargestOfLanes(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  // Bits of such values are in the order of the values, and those of NaN come last.
  return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(value)));
#else
  return value;
#endif
}
__device__ inline float LargerNotNegative(float a, float b) {
  return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
}

// kTiles: tiles of 16 queries of a warp. kHasPolynomial: the polynomial serves some exponentials. For groups of few
// keys it does not pay: its bound costs more than it saves. Layout: that of keys and values in shared memory.
template <typename T, int kChannels, int kTiles, bool kHasPolynomial, typename Layout = HeadRows<kChannels>>
class WarpAttention {
 public:
  using Value = T;
  static constexpr int32_t kRows = 16 * kTiles;
  static constexpr int kNumTiles = kTiles;
  using Head = Layout;
  static constexpr int32_t kVectors = Head::kVectors;

  // Queries as factor A: channels 8 v + Column() and the next of rows Row(i, 0) and Row(i, 1).
  using Queries = uint32_t[kTiles][kVectors][2];

  // Loads queries. row(i) is the address of the head's first channel in row i; rows after the last of the num_rows rows
  // are copies of it. reads_pairs: two neighbouring channels are aligned. channels <= kChannels.
  template <typename RowOf>
  __device__ static void LoadQueries(const RowOf& row, int32_t num_rows, int32_t channels, bool reads_pairs,
                                     Queries& queries) {
    const uint16_t* rows[kTiles][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        rows[i][half] = reinterpret_cast<const uint16_t*>(row(min(Row(i, half), num_rows - 1)));
      }
    }
    const auto load = [&](const auto& pair_at) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int v = 0; v < kVectors; ++v) queries[i][v][half] = pair_at(rows[i][half], v * 8 + Column());
        }
      }
    };
    if (reads_pairs) {
      load([&](const uint16_t* query, int32_t c) {
        return c < channels ? *reinterpret_cast<const uint32_t*>(query + c) : 0;
      });
    } else {
      load([&](const uint16_t* query, int32_t c) {
        const uint32_t first = c < channels ? query[c] : 0, second = c + 1 < channels ? query[c + 1] : 0;
        return first | second << 16;
      });
    }
  }

  __device__ void SetQueries(const Queries& queries, float scale) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        references_[i][half] = kNoScore;
        // A negative scale changes the signs of the queries, so that the largest product is the largest score.
#pragma unroll
        for (int v = 0; v < kVectors; ++v) queries_[i][v][half] = queries[i][v][half] ^ (scale < 0 ? 0x80008000 : 0);
      }
    }
    scale_ = fabsf(scale) * kLog2E;
    if constexpr (kHasPolynomial) longest_ = scale_ * LongestQuery();
  }

  // Raises the references to the largest scores of some keys. `factors` becomes the factors of earlier weights.
  __device__ void RaiseReferences(uint32_t keys, int32_t num_keys, float (&factors)[kTiles][2]) {
    float largest[kTiles][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) largest[i][0] = largest[i][1] = kNoScore;
    const auto add = [&](int32_t first, auto is_whole) {
      float scores[kTiles][2][4];
      Score(keys + first * Head::kPitch, scores);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const bool exists = is_whole() || first + j * 8 + Lane() % 4 * 2 + k % 2 < num_keys;
            if (exists) largest[i][k / 2] = fmaxf(largest[i][k / 2], scores[i][j][k]);
          }
        }
      }
    };
    int32_t first = 0;
    for (; first + kStepKeys <= num_keys; first += kStepKeys) add(first, std::true_type());
    if (first < num_keys) add(first, std::false_type());
    RaiseReferencesTo(largest, factors);
  }

  // Sets the sums to 0.
  __device__ void Clear() {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        weights_[i][k] = 0;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) sums_[i][v][k] = 0;
      }
    }
  }

  // Adds the weighted values of num_keys keys to the sums. keys and values are addresses in shared memory. Up to
  // 2 kStepKeys rows after the keys are read, but do not count. longest_key: not less than the length of any key; only
  // the polynomial needs it.
  __device__ void AddKeys(uint32_t keys, uint32_t values, int32_t num_keys, float longest_key) {
    const int32_t num_steps = num_keys / kStepKeys;
    if (kHasPolynomial && IsBounded(longest_key)) {
      AddSteps<true>(keys, values, num_steps);
    } else {
      AddSteps<false>(keys, values, num_steps);
    }
    const int32_t first = num_steps * kStepKeys;
    if (first < num_keys) AddPartOfStep(keys + first * Head::kPitch, values + first * Head::kPitch, num_keys - first);
  }

  // Returns true if the polynomial may compute the exponentials of all scores of keys that are not longer than
  // longest_key; false if something is NaN.
  __device__ bool IsBounded(float longest_key) const {
    return longest_ * longest_key + farthest_reference_ < kMostExponent;
  }

  // Returns true if a weight may be too large for its type, or is not a number. All lanes get the same answer.
  __device__ bool IsTooHigh() const {
    bool is_high = false;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      is_high |= !(weights_[i][0] < kMostWeights) || !(weights_[i][2] < kMostWeights);
    }
    return __any_sync(~0u, is_high);
  }

  // The lane has the sums of rows Row(i, half) and channels 8 v + Column() and the next, for each i, half and v.
  __device__ static int32_t Row(int i, int half) { return i * 16 + half * 8 + Lane() / 4; }
  __device__ static int32_t Column() { return Lane() % 4 * 2; }
  __device__ float Sum(int i, int half, int v, int k) const { return sums_[i][v][2 * half + k]; }
  __device__ float Weights(int i, int half) const { return weights_[i][2 * half]; }
  // Returns the reference of a row: a weight is 2^(score * log2(e) - reference).
  __device__ float Reference(int i, int half) const { return references_[i][half]; }

 protected:
  static constexpr float kLog2E = 1.4426950408889634f;
  static constexpr float kNoScore = -1e30f;     // the reference of a row without a score above -infinity
  static constexpr float kHeadroom = 4;         // weights of the sampled keys are at most 2^-3.5
  static constexpr float kMostWeights = 32768;  // of a row; below the largest float16
  static constexpr float kMostExponent = 120;   // the polynomial's results are normal numbers
  static constexpr float kMagic = 12582912;     // 1.5 * 2^23: adding it rounds to a whole number

  __device__ static int32_t Lane() { return static_cast<int32_t>(threadIdx.x) % 32; }

  // Raises the references to the largest of the scores that the lanes of a row have found.
  __device__ void RaiseReferencesTo(const float (&largest)[kTiles][2], float (&factors)[kTiles][2]) {
    float farthest = 0;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = largest[i][half];
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        // A whole number, which the polynomial needs.
        const float reference = fmaxf(rintf(most * scale_) + kHeadroom, references_[i][half]);
        factors[i][half] = Exp2(references_[i][half] - reference);
        references_[i][half] = reference;
        farthest = LargerNotNegative(farthest, fabsf(reference));
      }
    }
    if constexpr (kHasPolynomial) farthest_reference_ = LargestOfLanes(farthest);
  }

  // Returns the largest length of a query of the warp; NaN if one is NaN.
  __device__ float LongestQuery() const {
    float largest_square = 0;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float square = 0;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const auto values = reinterpret_cast<const typename PairOf<T>::Type&>(queries_[i][v][half]);
          square += ToFloat(values.x) * ToFloat(values.x) + ToFloat(values.y) * ToFloat(values.y);
        }
        square += __shfl_xor_sync(~0u, square, 1);
        square += __shfl_xor_sync(~0u, square, 2);
        largest_square = LargerNotNegative(largest_square, fabsf(square));
      }
    }
    return sqrtf(LargestOfLanes(largest_square));
  }

  // Computes queries keys^T for kStepKeys keys.
  __device__ void Score(uint32_t keys, float (&scores)[kTiles][2][4]) const {
    const int32_t lane = Lane();
    uint32_t columns[kVectors][2];  // of keys 0 to 7, of keys 8 to 15
    // Matrices: keys 0 to 7 and vector v, the same keys and vector v + 1, then keys 8 to 15.
    const int32_t key = lane / 16 * 8 + lane % 8;
#pragma unroll
    for (int v = 0; v + 1 < kVectors; v += 2) {
      uint32_t loaded[4];
      LoadMatrices(loaded, keys + Head::Offset(key, v + lane / 8 % 2));
      columns[v][0] = loaded[0];
      columns[v + 1][0] = loaded[1];
      columns[v][1] = loaded[2];
      columns[v + 1][1] = loaded[3];
    }
    if constexpr (kVectors % 2 != 0) LoadMatrices(columns[kVectors - 1], keys + Head::Offset(lane % 16, kVectors - 1));
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) scores[i][j][k] = 0;
#pragma unroll
        for (int v = 0; v + 1 < kVectors; v += 2) {
          const uint32_t a[4] = {queries_[i][v][0], queries_[i][v][1], queries_[i][v + 1][0], queries_[i][v + 1][1]};
          MultiplyAdd<T>(scores[i][j], a, columns[v][j], columns[v + 1][j]);
        }
        if constexpr (kVectors % 2 != 0) {
          constexpr int v = kVectors - 1;
          MultiplyAddHalf<T>(scores[i][j], queries_[i][v][0], queries_[i][v][1], columns[v][j]);
        }
      }
    }
  }

  // Adds the values of kStepKeys keys with their weights. weights[i]: a tile of weights, as factor A.
  __device__ void AddValues(uint32_t values, const uint32_t (&weights)[kTiles][4]) {
    const int32_t lane = Lane();
#pragma unroll
    for (int v = 0; v + 1 < kVectors; v += 2) {
      uint32_t loaded[4];  // keys 0 to 7 and 8 to 15 of vector v, then of vector v + 1
      LoadTransposedMatrices(loaded, values + Head::Offset(lane % 16, v + lane / 16));
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        MultiplyAdd<T>(sums_[i][v], weights[i], loaded[0], loaded[1]);
        MultiplyAdd<T>(sums_[i][v + 1], weights[i], loaded[2], loaded[3]);
      }
    }
    if constexpr (kVectors % 2 != 0) {
      uint32_t loaded[2];
      LoadTransposedMatrices(loaded, values + Head::Offset(lane % 16, kVectors - 1));
#pragma unroll
      for (int i = 0; i < kTiles; ++i) MultiplyAdd<T>(sums_[i][kVectors - 1], weights[i], loaded[0], loaded[1]);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) MultiplyAdd<T>(weights_[i], weights[i], PairOf<T>::kOnes, PairOf<T>::kOnes);
  }

  // Returns 2^(score * scale - reference).
  __device__ static float ScaledExp2(float score, float scale, float reference) {
    return Exp2(fmaf(score, scale, -reference));
  }

  // Returns the same by a polynomial. The exponent must be between -kMostExponent and kMostExponent. The relative error
  // is below 7.5e-5, a third of that of rounding to float16. magic: Magic.
  __device__ static float PolynomialExp2(float score, float scale, float magic) {
    const float shifted = fmaf(score, scale, magic);             // its lowest bits are the exponent's whole part
    const float fraction = fmaf(score, scale, magic - shifted);  // -0.5 to 0.5
    float power = fmaf(fraction, 0.05517167f, 0.24261112f);
    power = fmaf(power, fraction, 0.69326099f);
    power = fmaf(power, fraction, 0.99992807f);
    return __uint_as_float(__float_as_uint(power) + (__float_as_uint(shifted) << 23));
  }

  // Returns the weight of a score by the special function unit.
  __device__ float Weight(float score, int i, int half) const {
    return ScaledExp2(score, scale_, references_[i][half]);
  }
  __device__ float Magic(int i, int half) const { return kMagic - references_[i][half]; }

  static constexpr bool UsesPolynomial(int score) { return score * kPolynomialScores % 16 < kPolynomialScores; }

  // Adds num_steps times kStepKeys keys. The scores of the next step are computed before the exponentials of this one.
  template <bool kIsBounded>
  __device__ void AddSteps(uint32_t keys, uint32_t values, int32_t num_steps) {
    float magic[kTiles][2];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) magic[i][half] = Magic(i, half);
    }
    float scores[kTiles][2][4];
    Score(keys, scores);
#pragma unroll 2
    for (int32_t step = 0; step < num_steps; ++step) {
      keys += kStepKeys * Head::kPitch;
      float next[kTiles][2][4];
      Score(keys, next);
      uint32_t weights[kTiles][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            float& score = scores[i][j][k];
            if (kIsBounded && UsesPolynomial((i * 2 + j) * 4 + k)) {
              score = PolynomialExp2(score, scale_, magic[i][k / 2]);
            } else {
              score = Weight(score, i, k / 2);
            }
          }
          weights[i][2 * j] = RoundPair<T>(scores[i][j][0], scores[i][j][1]);
          weights[i][2 * j + 1] = RoundPair<T>(scores[i][j][2], scores[i][j][3]);
        }
      }
      AddValues(values, weights);
      values += kStepKeys * Head::kPitch;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int k = 0; k < 4; ++k) scores[i][j][k] = next[i][j][k];
        }
      }
    }
  }

  // Adds kStepKeys keys, of which the first num_keys count.
  __device__ void AddPartOfStep(uint32_t keys, uint32_t values, int32_t num_keys) {
    float scores[kTiles][2][4];
    Score(keys, scores);
    uint32_t weights[kTiles][4];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float weight[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const bool exists = j * 8 + Column() + k % 2 < num_keys;
          weight[k] = exists ? Weight(scores[i][j][k], i, k / 2) : 0.0f;
        }
        weights[i][2 * j] = RoundPair<T>(weight[0], weight[1]);
        weights[i][2 * j + 1] = RoundPair<T>(weight[2], weight[3]);
      }
    }
    AddValues(values, weights);
  }

  Queries queries_;
  float scale_;               // to the exponent of 2; not negative
  float longest_;             // the largest length of a query, scaled
  float farthest_reference_;  // the largest magnitude of a reference
  float references_[kTiles][2];
  float sums_[kTiles][kVectors][4];
  float weights_[kTiles][4];  // the sums of weights; [0] and [1] are equal, [2] and [3] too
};

}  // namespace voxserve::kernels::cuda
