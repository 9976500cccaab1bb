// The inner loops of cpu::GroupAttention. group_attention_{baseline,avx2,avx512,neon}.cc include this file, each for
// one vector instruction set and with its own namespace VOXSERVE_ISA. So the file has no include guard. It includes no
// header with inline functions: the linker could merge such a function with a copy that was compiled for another set.
//
// A lane of a vector is a query. Every lane does the same operations, so a query's bits do not depend on its lane; sums
// need no horizontal addition, and heads of any number of channels fill the vectors.

#include "kernels/rows/attention/group_attention_isa.h"

namespace voxserve::kernels::cpu::VOXSERVE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr const char* kName = "avx512";
constexpr int kVectorFloats = 16;
constexpr int kTileRows = 12;  // keys or channels, whose sums are in registers
#elif defined(__AVX2__)
constexpr const char* kName = "avx2";
constexpr int kVectorFloats = 8;
constexpr int kTileRows = 6;
#elif defined(VOXSERVE_NEON)
constexpr const char* kName = "neon";
constexpr int kVectorFloats = 4;
constexpr int kTileRows = 12;
#else
constexpr const char* kName = "baseline";
constexpr int kVectorFloats = 4;
constexpr int kTileRows = 6;
#endif
constexpr int kVectors = 2;
constexpr int kTileQueries = kVectors * kVectorFloats;
static_assert(kScoreTileKeys % kTileRows == 0);

typedef float Vector __attribute__((vector_size(kVectorFloats * sizeof(float)), aligned(4), may_alias));
typedef uint32_t Integers __attribute__((vector_size(kVectorFloats * sizeof(float)), aligned(4), may_alias));

inline Vector Load(const float* p) { return *reinterpret_cast<const Vector*>(p); }
inline void Store(float* p, Vector v) { *reinterpret_cast<Vector*>(p) = v; }
inline Vector Fill(float value) { return value - Vector{}; }

// A value for each query of a tile.
struct Lanes {
  Vector v[kVectors];
};

// Returns the larger value, or b if one of them is NaN.
inline Vector Larger(Vector a, Vector b) { return a > b ? a : b; }

// Returns 2^x for x <= 0, with a relative error below 3.2 * 2^-24; exactly 1 for x = 0. Below -126.5 it gives 0, also
// for -infinity. NaN stays NaN.
//
// x = n + f, where n is an integer and |f| <= 0.5. The polynomial is the minimax approximation of 2^f of degree 5 that
// is exact at 0: relative error 9.2e-8.
inline Vector Exp2(Vector x) {
  x = Larger(Fill(-127.0f), x);  // NaN stays
  // Adding this number rounds to an integer, which then is the sum's lowest bits, with the exponent's bias added.
  const Vector magic = Fill(12582912.0f + 127.0f);
  const Vector rounded = x + magic;
  const Vector f = x - (rounded - magic);
  Vector p = Fill(0.001326472731307149f);
  p = p * f + 0.009671512991189957f;
  p = p * f + 0.05550733581185341f;
  p = p * f + 0.24022242426872253f;
  p = p * f + 0.6931470036506653f;
  p = p * f + 1.0f;
  const Integers exponent = reinterpret_cast<Integers>(rounded) << 23;
  return p * reinterpret_cast<Vector>(exponent);
}

// sum[r] += factors[r] * x for kRows rows.
template <int kRows>
inline void AddProducts(const float* __restrict factors, const Vector (&x)[kVectors], Vector (&sum)[kRows][kVectors]) {
  int r = 0;
#if defined(VOXSERVE_NEON)
  // Four factors are one load, and the instruction multiplies a vector by a lane of another.
  for (; r + 4 <= kRows; r += 4) {
    const float32x4_t four = vld1q_f32(factors + r);
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = vfmaq_laneq_f32(sum[r][v], x[v], four, 0);
      sum[r + 1][v] = vfmaq_laneq_f32(sum[r + 1][v], x[v], four, 1);
      sum[r + 2][v] = vfmaq_laneq_f32(sum[r + 2][v], x[v], four, 2);
      sum[r + 3][v] = vfmaq_laneq_f32(sum[r + 3][v], x[v], four, 3);
    }
  }
#endif
  for (; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] += factors[r] * x[v];
  }
}

// Writes the scores of a panel of kKeys keys to `scores`, [kKeys, kTileQueries], and raises the queries' largest ones.
template <int kKeys>
inline void ScorePanel(const float* __restrict panel, int32_t channels, const float* __restrict queries,
                       float* __restrict scores, Lanes& largest) {
  Vector sum[kKeys][kVectors] = {};
  for (int32_t c = 0; c < channels; ++c) {
    Vector q[kVectors];
    for (int v = 0; v < kVectors; ++v) q[v] = Load(queries + c * kTileQueries + v * kVectorFloats);
    AddProducts(panel + c * kKeys, q, sum);
  }
  for (int k = 0; k < kKeys; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      Store(scores + k * kTileQueries + v * kVectorFloats, sum[k][v]);
      largest.v[v] = Larger(sum[k][v], largest.v[v]);
    }
  }
}

// Does the same for the last `num_keys` < kTileRows keys. kKeys is the largest number of keys that is possible.
template <int kKeys>
inline void ScoreRest(int32_t num_keys, const float* panel, int32_t channels, const float* queries, float* scores,
                      Lanes& largest) {
  if constexpr (kKeys > 0) {
    if (num_keys == kKeys) {
      ScorePanel<kKeys>(panel, channels, queries, scores, largest);
    } else {
      ScoreRest<kKeys - 1>(num_keys, panel, channels, queries, scores, largest);
    }
  }
}

// out = out * factor + sum over keys of weight * value, for kChannels channels.
template <int kChannels>
inline void AddValues(int32_t num_keys, const float* __restrict weights, const float* __restrict values,
                      int32_t value_channels, const Lanes& factor, float* __restrict out) {
  Vector sum[kChannels][kVectors] = {};
  for (int32_t k = 0; k < num_keys; ++k) {
    Vector w[kVectors];
    for (int v = 0; v < kVectors; ++v) w[v] = Load(weights + k * kTileQueries + v * kVectorFloats);
    AddProducts(values + int64_t{k} * value_channels, w, sum);
  }
  for (int c = 0; c < kChannels; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      float* const to = out + c * kTileQueries + v * kVectorFloats;
      Store(to, Load(to) * factor.v[v] + sum[c][v]);
    }
  }
}

// Does the same for num_channels <= kChannels.
template <int kChannels>
inline void AddAnyValues(int32_t num_channels, int32_t num_keys, const float* weights, const float* values,
                         int32_t value_channels, const Lanes& factor, float* out) {
  if constexpr (kChannels > 0) {
    if (num_channels == kChannels) {
      AddValues<kChannels>(num_keys, weights, values, value_channels, factor, out);
    } else {
      AddAnyValues<kChannels - 1>(num_channels, num_keys, weights, values, value_channels, factor, out);
    }
  }
}

// Turns the scores of some keys into weights, and returns the sum of each query's.
inline Lanes Weigh(int32_t num_keys, const Lanes& subtracted, float* __restrict scores) {
  Lanes sum = {};
  for (int32_t k = 0; k < num_keys; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      float* const score = scores + k * kTileQueries + v * kVectorFloats;
      const Vector weight = Exp2(Load(score) - subtracted.v[v]);
      Store(score, weight);
      sum.v[v] += weight;
    }
  }
  return sum;
}

// The softmax is computed online, tile of keys by tile of keys (T. Dao et al., "FlashAttention", NeurIPS 2022).
void Attend(const QueryTileArgs& args) {
  const Vector lowest = Fill(-__builtin_inff());
  Lanes largest, sum = {};
  for (Vector& v : largest.v) v = lowest;
  for (int64_t i = 0; i < int64_t{args.value_channels} * kTileQueries; ++i) args.out[i] = 0;

  // The fewest tiles, of about the same size, because a tile of few channels waits for its sums.
  const int32_t num_tiles = (args.value_channels + kTileRows - 1) / kTileRows;
  const int32_t tile_channels = (args.value_channels + num_tiles - 1) / num_tiles;
  const float* panel = args.keys;
  for (int32_t first = 0; first < args.num_keys; first += kScoreTileKeys) {
    const int32_t num_keys = args.num_keys - first < kScoreTileKeys ? args.num_keys - first : kScoreTileKeys;
    const Lanes before = largest;
    int32_t k = 0;
    for (; k + kTileRows <= num_keys; k += kTileRows) {
      ScorePanel<kTileRows>(panel, args.key_channels, args.queries, args.scores + k * kTileQueries, largest);
      panel += int64_t{kTileRows} * args.key_channels;
    }
    ScoreRest<kTileRows - 1>(num_keys - k, panel, args.key_channels, args.queries, args.scores + k * kTileQueries,
                             largest);

    // While all scores are -infinity, 0 is subtracted, so that their weights are 0 and not NaN.
    Lanes subtracted, factor;
    for (int v = 0; v < kVectors; ++v) {
      subtracted.v[v] = largest.v[v] == lowest ? Vector{} : largest.v[v];
      factor.v[v] = Exp2(before.v[v] - subtracted.v[v]);
    }
    const Lanes added = Weigh(num_keys, subtracted, args.scores);
    for (int v = 0; v < kVectors; ++v) sum.v[v] = sum.v[v] * factor.v[v] + added.v[v];

    for (int32_t c = 0; c < args.value_channels; c += tile_channels) {
      const int32_t rest = args.value_channels - c;
      AddAnyValues<kTileRows>(rest < tile_channels ? rest : tile_channels, num_keys, args.scores,
                              args.values + int64_t{first} * args.value_channels + c, args.value_channels, factor,
                              args.out + c * kTileQueries);
    }
  }
  for (int32_t c = 0; c < args.value_channels; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      float* const to = args.out + c * kTileQueries + v * kVectorFloats;
      Store(to, Load(to) / sum.v[v]);
    }
  }
}

}  // namespace

extern const QueryTileIsa kQueryTile = {kName, kTileQueries, kTileRows, &Attend};

}  // namespace voxserve::kernels::cpu::VOXSERVE_ISA
