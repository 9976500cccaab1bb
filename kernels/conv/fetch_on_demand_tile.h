// The inner loops of cpu::FetchOnDemand, which keep tiles of sums in registers.
// fetch_on_demand_{baseline,avx2,avx512,neon}.cc include this file, each for one vector instruction set and with its
// own namespace VOXSERVE_ISA. So the file has no include guard. It includes no header with inline functions: the linker
// could merge such a function with a copy that was compiled for another set.

#include "kernels/conv/fetch_on_demand_isa.h"

namespace voxserve::kernels::cpu::VOXSERVE_ISA {
namespace {

#if defined(__AVX512F__)
constexpr const char* kName = "avx512";
constexpr int kVectorFloats = 16;
constexpr int TileRows(int vectors) { return vectors == 3 ? 8 : 12; }
constexpr int kMaxPanelVectors = 3;
#elif defined(__AVX2__)
constexpr const char* kName = "avx2";
constexpr int kVectorFloats = 8;
constexpr int TileRows(int vectors) { return vectors == 3 ? 4 : 6; }
constexpr int kMaxPanelVectors = 3;
#elif defined(VOXSERVE_NEON)
constexpr const char* kName = "neon";
constexpr int kVectorFloats = 4;
// 20 sums, 8 vectors of weights and some inputs fill the 32 registers.
constexpr int TileRows(int /*vectors*/) { return 10; }
constexpr int kMaxPanelVectors = 2;
#else
constexpr const char* kName = "baseline";
constexpr int kVectorFloats = 4;
constexpr int TileRows(int /*vectors*/) { return 6; }
constexpr int kMaxPanelVectors = 2;
#endif

// Cuts vectors of output channels into panels of three, as far as the set has them, and of two. Only a lone vector is a
// panel of its own, because its tiles read an input for every multiplication.
int32_t PanelVectors(int32_t num_vectors) {
  if (kMaxPanelVectors >= 3 && num_vectors >= 3 && num_vectors != 4) return 3;
  return num_vectors >= 2 ? 2 : 1;
}

#if defined(VOXSERVE_NEON)
// GCC stores sums to memory in each step too if their vector's type may alias others, or if the stack is guarded. The
// arrays of a tile have no index from outside.
#define TILE_FUNCTION __attribute__((noinline, no_stack_protector))
using Vector = float32x4_t;
inline Vector Load(const float* p) { return vld1q_f32(p); }
inline void Store(float* p, Vector v) { vst1q_f32(p, v); }
#else
#define TILE_FUNCTION inline
typedef float Vector __attribute__((vector_size(kVectorFloats * sizeof(float)), aligned(4), may_alias));

inline Vector Load(const float* p) { return *reinterpret_cast<const Vector*>(p); }
inline void Store(float* p, Vector v) { *reinterpret_cast<Vector*>(p) = v; }
#endif

// Stands before a loop over the rows or vectors of a tile. GCC keeps a tile's sums in registers from the first load to
// the last store only if it unrolls these loops before it looks at the sums' array. Else it copies all sums to the
// stack and back, before and after the loop over the input channels. NEON's file has flags for this; Clang needs
// nothing.
#if defined(__clang__) || defined(VOXSERVE_NEON)
#define UNROLLED
#else
#define UNROLLED _Pragma("GCC unroll 32")
#endif

// out[out_rows[r]][0 .. width) += in[in_rows[r]] * panel for kRows pairs; width = kVectors * kVectorFloats.
template <int kRows, int kVectors>
TILE_FUNCTION void AccumulateTile(const float* __restrict in, int64_t in_pitch, int32_t in_channels,
                                  const float* __restrict panel, float* out, int64_t out_pitch, const int32_t* in_rows,
                                  const int32_t* out_rows) {
  const float* a[kRows];
  Vector sum[kRows][kVectors];
  UNROLLED
  for (int r = 0; r < kRows; ++r) {
    a[r] = in + in_rows[r] * in_pitch;
    const float* c = out + out_rows[r] * out_pitch;
    UNROLLED
    for (int v = 0; v < kVectors; ++v) sum[r][v] = Load(c + v * kVectorFloats);
  }
  int32_t i = 0;
#if defined(VOXSERVE_NEON)
  // Four input channels of a row are one load, and the instruction multiplies a vector by a lane of another. A sum
  // takes its channels in order, so its bits are those of one channel at a time.
  const float* weights = panel;
  for (; i + 4 <= in_channels; i += 4, weights += 4 * kVectors * kVectorFloats) {
    Vector b[4][kVectors];
    for (int lane = 0; lane < 4; ++lane) {
      for (int v = 0; v < kVectors; ++v) b[lane][v] = Load(weights + (lane * kVectors + v) * kVectorFloats);
    }
    for (int r = 0; r < kRows; ++r) {
      const float32x4_t inputs = vld1q_f32(a[r] + i);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = vfmaq_laneq_f32(sum[r][v], b[0][v], inputs, 0);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = vfmaq_laneq_f32(sum[r][v], b[1][v], inputs, 1);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = vfmaq_laneq_f32(sum[r][v], b[2][v], inputs, 2);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = vfmaq_laneq_f32(sum[r][v], b[3][v], inputs, 3);
    }
  }
#endif
  for (; i < in_channels; ++i) {
    Vector b[kVectors];
    UNROLLED
    for (int v = 0; v < kVectors; ++v) b[v] = Load(panel + (i * kVectors + v) * kVectorFloats);
    UNROLLED
    for (int r = 0; r < kRows; ++r) {
      UNROLLED
      for (int v = 0; v < kVectors; ++v) sum[r][v] += a[r][i] * b[v];
    }
  }
  UNROLLED
  for (int r = 0; r < kRows; ++r) {
    float* c = out + out_rows[r] * out_pitch;
    UNROLLED
    for (int v = 0; v < kVectors; ++v) Store(c + v * kVectorFloats, sum[r][v]);
  }
}

// Does the same for the last `num_pairs` < TileRows(kVectors) pairs. kRows is the largest number of pairs that are
// possible.
template <int kRows, int kVectors>
inline void AccumulateRest(int64_t num_pairs, const float* in, int64_t in_pitch, int32_t in_channels,
                           const float* panel, float* out, int64_t out_pitch, const int32_t* in_rows,
                           const int32_t* out_rows) {
  if constexpr (kRows > 0) {
    if (num_pairs == kRows) {
      AccumulateTile<kRows, kVectors>(in, in_pitch, in_channels, panel, out, out_pitch, in_rows, out_rows);
    } else {
      AccumulateRest<kRows - 1, kVectors>(num_pairs, in, in_pitch, in_channels, panel, out, out_pitch, in_rows,
                                          out_rows);
    }
  }
}

template <int kVectors>
void AccumulatePanel(const AccumulateArgs& args, const float* panel, float* out) {
  constexpr int kRows = TileRows(kVectors);
  int64_t p = 0;
  for (; p + kRows <= args.num_pairs; p += kRows) {
    AccumulateTile<kRows, kVectors>(args.in, args.in_pitch, args.in_channels, panel, out, args.out_pitch,
                                    args.in_rows + p, args.out_rows + p);
  }
  AccumulateRest<kRows - 1, kVectors>(args.num_pairs - p, args.in, args.in_pitch, args.in_channels, panel, out,
                                      args.out_pitch, args.in_rows + p, args.out_rows + p);
}

// Adds the products of the last `num_columns` output channels if they do not fill a vector. Sums are made in a whole
// vector, and only its first num_columns values are added to the output row.
void AccumulatePartialVector(const AccumulateArgs& args, const float* panel, float* out, int32_t num_columns) {
  for (int64_t p = 0; p < args.num_pairs; ++p) {
    const float* a = args.in + args.in_rows[p] * args.in_pitch;
    float* c = out + args.out_rows[p] * args.out_pitch;
    Vector sum = {};
    for (int32_t i = 0; i < args.in_channels; ++i) sum += a[i] * Load(panel + i * kVectorFloats);
    for (int32_t column = 0; column < num_columns; ++column) c[column] += sum[column];
  }
}

void Accumulate(const AccumulateArgs& args) {
  const float* panel = args.weights;
  float* out = args.out;
  for (int32_t num_vectors = args.out_channels / kVectorFloats; num_vectors > 0;) {
    const int32_t vectors = PanelVectors(num_vectors);
    if (vectors == 1) {
      AccumulatePanel<1>(args, panel, out);
    } else if (vectors == 2) {
      AccumulatePanel<2>(args, panel, out);
    } else {
      AccumulatePanel<kMaxPanelVectors>(args, panel, out);
    }
    panel += int64_t{args.in_channels} * vectors * kVectorFloats;
    out += vectors * kVectorFloats;
    num_vectors -= vectors;
  }
  if (const int32_t rest = args.out_channels % kVectorFloats; rest != 0) {
    AccumulatePartialVector(args, panel, out, rest);
  }
}

}  // namespace

extern const Isa kIsa = {kName, kVectorFloats, &PanelVectors, &Accumulate};

}  // namespace voxserve::kernels::cpu::VOXSERVE_ISA

#undef TILE_FUNCTION
#undef UNROLLED
