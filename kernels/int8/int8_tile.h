// The inner loops of products in 8 bits, which keep tiles of sums in registers. int8_product_{baseline,avx2,avx512}.cc
// include this file, each for one vector instruction set and with its own namespace VOXSERVE_ISA. So the file has no
// include guard. It includes no header with inline functions that the linker could merge with a copy for another set.
//
// - AVX-512 with VNNI multiplies four uint8 by four int8 in one instruction and adds them to an int32. Inputs of int8
//   get 128 added (their highest bit is flipped); the sums lose 128 * the weights again.
// - AVX2 and SSE2 multiply pairs of int16, which cannot saturate; their instruction for 8 bits adds in 16 bits and
//   does.

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <cstddef>

#include "kernels/int8/int8_isa.h"

namespace voxserve::kernels::cpu::VOXSERVE_ISA {
namespace {

#if defined(__AVX512VNNI__)
constexpr const char* kName = "avx512vnni";
constexpr int kLanes = 16;
constexpr int kMaxVectors = 4;
constexpr int kInputsOfWord = 4;
constexpr int kTileRows[] = {0, 12, 12, 8, 6};  // by vectors of a tile: sums in 24 of the 32 registers, or in 12
#elif defined(__AVX2__)
constexpr const char* kName = "avx2";
constexpr int kLanes = 8;
constexpr int kMaxVectors = 2;
constexpr int kInputsOfWord = 2;
constexpr int kTileRows[] = {0, 6, 6};
#else
constexpr const char* kName = "baseline";
constexpr int kLanes = 4;
constexpr int kMaxVectors = 2;
constexpr int kInputsOfWord = 2;
constexpr int kTileRows[] = {0, 6, 6};
#endif
constexpr bool kAdds128 = kInputsOfWord == 4;
constexpr int kMaxTileRows = 12;

// A loop over a tile's rows or vectors. GCC does not unroll all of them itself, and would then keep the sums in memory.
#if defined(__clang__)
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

// Vectors in registers, and the same in memory, which may alias other types.
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t StoredInts __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef float StoredFloats __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

inline Ints LoadInts(const void* p) { return *static_cast<const StoredInts*>(p); }
inline void StoreInts(void* p, Ints v) { *static_cast<StoredInts*>(p) = v; }
inline Floats LoadFloats(const float* p) { return *reinterpret_cast<const StoredFloats*>(p); }
inline void StoreFloats(float* p, Floats v) { *reinterpret_cast<StoredFloats*>(p) = v; }

// Returns the word of 4 bytes at p in every lane.
inline Ints Broadcast(const void* p) {
  int32_t word;
  __builtin_memcpy(&word, p, sizeof(word));
  return Ints{} + word;
}

// Does the same with `count` < 4 bytes and zeros after them.
inline Ints Broadcast(const uint8_t* p, int32_t count) {
  uint32_t word = p[0];
  if (count > 1) word |= static_cast<uint32_t>(p[1]) << 8;
  if (count > 2) word |= static_cast<uint32_t>(p[2]) << 16;
  return Ints{} + static_cast<int32_t>(word);
}

// Adds to each lane the products of the inputs of one word and the lane's weights.
inline Ints AddProducts(Ints sum, Ints inputs, Ints weights) {
#if defined(__AVX512VNNI__)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)inputs, (__m512i)weights);
#elif defined(__AVX2__)
  return sum + (Ints)_mm256_madd_epi16((__m256i)inputs, (__m256i)weights);
#elif defined(__SSE2__)
  return sum + (Ints)_mm_madd_epi16((__m128i)inputs, (__m128i)weights);
#else
  for (int lane = 0; lane < kLanes; ++lane) {
    sum[lane] += static_cast<int16_t>(inputs[lane]) * static_cast<int16_t>(weights[lane]);
    sum[lane] += (inputs[lane] >> 16) * (weights[lane] >> 16);
  }
  return sum;
#endif
}

// ---- Sums.

#if defined(__AVX512VNNI__)
// sums[out_rows[r]][0 .. width) += in[in_rows[r]] * panel for kRows pairs; width = kVectors * kLanes.
template <int kRows, int kVectors, bool kSigned>
inline void AccumulateTile(const Int8AccumulateArgs& args, const uint8_t* panel, int32_t* sums, int64_t sums_pitch,
                           const int32_t* in_rows, const int32_t* out_rows) {
  const Ints flip = Ints{} + static_cast<int32_t>(0x80808080);
  const uint8_t* a[kRows];
  Ints sum[kRows][kVectors];
  UNROLLED for (int r = 0; r < kRows; ++r) {
    a[r] = args.in + in_rows[r] * args.in_pitch;
    const int32_t* const c = sums + (out_rows[r] - args.first_out_row) * sums_pitch;
    UNROLLED for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = LoadInts(c + v * kLanes);
      if constexpr (kSigned) sum[r][v] -= LoadInts(panel + v * sizeof(Ints));
    }
  }
  const uint8_t* weights = panel + kVectors * sizeof(Ints);
  int32_t i = 0;
  for (; i + 4 <= args.in_channels; i += 4, weights += kVectors * sizeof(Ints)) {
    Ints b[kVectors];
    UNROLLED for (int v = 0; v < kVectors; ++v) b[v] = LoadInts(weights + v * sizeof(Ints));
    UNROLLED for (int r = 0; r < kRows; ++r) {
      Ints inputs = Broadcast(a[r] + i);
      if constexpr (kSigned) inputs ^= flip;
      UNROLLED for (int v = 0; v < kVectors; ++v) sum[r][v] = AddProducts(sum[r][v], inputs, b[v]);
    }
  }
  if (i < args.in_channels) {
    UNROLLED for (int r = 0; r < kRows; ++r) {
      Ints inputs = Broadcast(a[r] + i, args.in_channels - i);
      if constexpr (kSigned) inputs ^= flip;
      UNROLLED for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = AddProducts(sum[r][v], inputs, LoadInts(weights + v * sizeof(Ints)));
      }
    }
  }
  UNROLLED for (int r = 0; r < kRows; ++r) {
    int32_t* const c = sums + (out_rows[r] - args.first_out_row) * sums_pitch;
    UNROLLED for (int v = 0; v < kVectors; ++v) StoreInts(c + v * kLanes, sum[r][v]);
  }
}
#else
// The input channels that a tile widens to 16 bits at once.
constexpr int32_t kWidened = 256;

// Does the same as above. The rows' inputs are widened to int16 first.
template <int kRows, int kVectors, bool kSigned>
inline void AccumulateTile(const Int8AccumulateArgs& args, const uint8_t* panel, int32_t* sums, int64_t sums_pitch,
                           const int32_t* in_rows, const int32_t* out_rows) {
  int16_t wide[kRows][kWidened];
  Ints sum[kRows][kVectors];
  UNROLLED for (int r = 0; r < kRows; ++r) {
    const int32_t* const c = sums + (out_rows[r] - args.first_out_row) * sums_pitch;
    UNROLLED for (int v = 0; v < kVectors; ++v) sum[r][v] = LoadInts(c + v * kLanes);
  }
  const uint8_t* weights = panel + kVectors * sizeof(Ints);
  for (int32_t begin = 0; begin < args.in_channels; begin += kWidened) {
    const int32_t left = args.in_channels - begin;
    const int32_t count = left < kWidened ? left : kWidened;
    UNROLLED for (int r = 0; r < kRows; ++r) {
      const uint8_t* const a = args.in + in_rows[r] * args.in_pitch + begin;
      for (int32_t i = 0; i < count; ++i) wide[r][i] = kSigned ? static_cast<int8_t>(a[i]) : a[i];
      if (count % 2 != 0) wide[r][count] = 0;
    }
    for (int32_t i = 0; i < count; i += 2, weights += kVectors * sizeof(Ints)) {
      Ints b[kVectors];
      UNROLLED for (int v = 0; v < kVectors; ++v) b[v] = LoadInts(weights + v * sizeof(Ints));
      UNROLLED for (int r = 0; r < kRows; ++r) {
        const Ints inputs = Broadcast(&wide[r][i]);
        UNROLLED for (int v = 0; v < kVectors; ++v) sum[r][v] = AddProducts(sum[r][v], inputs, b[v]);
      }
    }
  }
  UNROLLED for (int r = 0; r < kRows; ++r) {
    int32_t* const c = sums + (out_rows[r] - args.first_out_row) * sums_pitch;
    UNROLLED for (int v = 0; v < kVectors; ++v) StoreInts(c + v * kLanes, sum[r][v]);
  }
}
#endif

// Does the same for the last num_pairs < kTileRows pairs. kRows is the largest number of pairs that are possible.
template <int kRows, int kVectors, bool kSigned>
inline void AccumulateRest(const Int8AccumulateArgs& args, int64_t num_pairs, const uint8_t* panel, int32_t* sums,
                           int64_t sums_pitch, const int32_t* in_rows, const int32_t* out_rows) {
  if constexpr (kRows > 0) {
    if (num_pairs == kRows) {
      AccumulateTile<kRows, kVectors, kSigned>(args, panel, sums, sums_pitch, in_rows, out_rows);
    } else {
      AccumulateRest<kRows - 1, kVectors, kSigned>(args, num_pairs, panel, sums, sums_pitch, in_rows, out_rows);
    }
  }
}

template <int kVectors, bool kSigned>
void AccumulatePanel(const Int8AccumulateArgs& args, const uint8_t* panel, int32_t* sums, int64_t sums_pitch) {
  constexpr int kRows = kTileRows[kVectors];
  static_assert(kRows <= kMaxTileRows);
  int64_t p = 0;
  for (; p + kRows <= args.num_pairs; p += kRows) {
    AccumulateTile<kRows, kVectors, kSigned>(args, panel, sums, sums_pitch, args.in_rows + p, args.out_rows + p);
  }
  AccumulateRest<kRows - 1, kVectors, kSigned>(args, args.num_pairs - p, panel, sums, sums_pitch, args.in_rows + p,
                                               args.out_rows + p);
}

template <bool kSigned>
void AccumulatePanels(const Int8AccumulateArgs& args) {
  const int64_t sums_pitch = int64_t{args.num_vectors} * kLanes;
  const int64_t words = (args.in_channels + kInputsOfWord - 1) / kInputsOfWord;
  const uint8_t* panel = args.weights;
  int32_t* sums = args.sums;
  for (int32_t left = args.num_vectors; left > 0;) {
    const int32_t vectors = VectorsOfPanel(left, kMaxVectors);
    if constexpr (kMaxVectors > 2) {
      if (vectors == 4) AccumulatePanel<4, kSigned>(args, panel, sums, sums_pitch);
      if (vectors == 3) AccumulatePanel<3, kSigned>(args, panel, sums, sums_pitch);
    }
    if (vectors == 2) AccumulatePanel<2, kSigned>(args, panel, sums, sums_pitch);
    if (vectors == 1) AccumulatePanel<1, kSigned>(args, panel, sums, sums_pitch);
    panel += (1 + words) * vectors * static_cast<int64_t>(sizeof(Ints));
    sums += vectors * kLanes;
    left -= vectors;
  }
}

void Accumulate(const Int8AccumulateArgs& args) {
  if (args.is_signed) {
    AccumulatePanels<true>(args);
  } else {
    AccumulatePanels<false>(args);
  }
}

// ---- Values in float32 and in 8 bits.

inline Ints LoadBytes(const uint8_t* p, bool is_signed) {
#if defined(__AVX512VNNI__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  // Without a mask GCC 12 warns of its own header.
  return (Ints)(is_signed ? _mm512_maskz_cvtepi8_epi32(0xffff, bytes) : _mm512_maskz_cvtepu8_epi32(0xffff, bytes));
#elif defined(__AVX2__)
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return (Ints)(is_signed ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
#else
  Ints values{};
  for (int lane = 0; lane < kLanes; ++lane) values[lane] = is_signed ? static_cast<int8_t>(p[lane]) : p[lane];
  return values;
#endif
}

// Stores the lowest byte of each lane.
inline void StoreBytes(uint8_t* p, Ints values) {
#if defined(__AVX512VNNI__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)values));
#elif defined(__AVX2__)
  const __m256i lowest = _mm256_shuffle_epi8(
      (__m256i)values, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                                        -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(lowest), _mm256_extracti128_si256(lowest, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), both);
#else
  for (int lane = 0; lane < kLanes; ++lane) p[lane] = static_cast<uint8_t>(values[lane]);
#endif
}

// Returns the address of column c of a row.
inline void* At(const Int8Values& values, int64_t row, int32_t c) {
  const int64_t value = row * values.pitch + c;
  return static_cast<char*>(values.data) + (values.type == Int8Type::kFloat32 ? 4 * value : value);
}

// Returns kLanes values from column c on; only `count` of them exist, the others are 0. Values of 8 bits are not
// scaled.
inline Floats LoadValues(const Int8Values& values, int64_t row, int32_t c, int32_t count) {
  const void* from = At(values, row, c);
  float rest[kLanes] = {};
  if (count < kLanes) {
    __builtin_memcpy(rest, from, static_cast<size_t>(values.type == Int8Type::kFloat32 ? 4 * count : count));
    from = rest;
  }
  if (values.type == Int8Type::kFloat32) return LoadFloats(static_cast<const float*>(from));
  return __builtin_convertvector(LoadBytes(static_cast<const uint8_t*>(from), values.type == Int8Type::kInt8), Floats);
}

// Stores the first `count` of kLanes values from column c on.
inline void StoreValues(Floats v, const float* inverse_scale, const Int8Values& values, int64_t row, int32_t c,
                        int32_t count) {
  void* const to = At(values, row, c);
  float rest[kLanes];
  if (values.type == Int8Type::kFloat32) {
    if (count == kLanes) {
      StoreFloats(static_cast<float*>(to), v);
    } else {
      StoreFloats(rest, v);
      __builtin_memcpy(to, rest, static_cast<size_t>(4 * count));
    }
    return;
  }
  const Floats least = Floats{} + (values.type == Int8Type::kInt8 ? -127.0f : 0.0f);
  const Floats largest = Floats{} + (values.type == Int8Type::kInt8 ? 127.0f : 255.0f);
  if (inverse_scale != nullptr) v *= LoadFloats(inverse_scale + c);
  v = v == v ? v : Floats{};
  v = v > least ? v : least;
  v = v < largest ? v : largest;
  // Below 2^22, a float32 loses its fraction (rounded half to even) if 1.5 * 2^23 is added.
  const Floats shift = Floats{} + 12582912.0f;
  const Ints rounded = __builtin_convertvector((v + shift) - shift, Ints);
  if (count == kLanes) {
    StoreBytes(static_cast<uint8_t*>(to), rounded);
  } else {
    StoreBytes(reinterpret_cast<uint8_t*>(rest), rounded);
    __builtin_memcpy(to, rest, static_cast<size_t>(count));
  }
}

inline int32_t Fewer(int32_t left) { return left < kLanes ? left : kLanes; }

// The values of one row before an activation other than ReLU.
inline Floats ValueOf(const Int8FinishArgs& args, const int32_t* sums, int64_t row, int32_t c) {
  Floats v = __builtin_convertvector(LoadInts(sums + c), Floats) * LoadFloats(args.multiplier + c);
  if (args.bias != nullptr) v = v + LoadFloats(args.bias + c);
  if (args.residual.data != nullptr) {
    Floats residual = LoadValues(args.residual, row, c, Fewer(args.channels - c));
    if (args.residual_scale != nullptr) residual = residual * LoadFloats(args.residual_scale + c);
    v = v + residual;
  }
  if (args.has_relu) v = v < Floats{} ? Floats{} : v;
  return v;
}

void Finish(const Int8FinishArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    int32_t* const sums = args.sums + row * args.sums_pitch;
    if (args.activate == nullptr) {
      for (int32_t c = 0; c < args.channels; c += kLanes) {
        StoreValues(ValueOf(args, sums, row, c), args.inverse_scale, args.out, row, c, Fewer(args.channels - c));
      }
      continue;
    }
    auto* const values = reinterpret_cast<float*>(sums);
    for (int32_t c = 0; c < args.channels; c += kLanes) StoreFloats(values + c, ValueOf(args, sums, row, c));
    args.activate(args.activation, values, args.channels);
    for (int32_t c = 0; c < args.channels; c += kLanes) {
      StoreValues(LoadFloats(values + c), args.inverse_scale, args.out, row, c, Fewer(args.channels - c));
    }
  }
}

void Convert(const Int8ConvertArgs& args) {
  for (int64_t row = 0; row < args.num_rows; ++row) {
    for (int32_t c = 0; c < args.channels; c += kLanes) {
      const int32_t count = Fewer(args.channels - c);
      Floats v = LoadValues(args.in, row, c, count);
      if (args.in.type != Int8Type::kFloat32) v = v * LoadFloats(args.in_scale + c);
      StoreValues(v, args.inverse_scale, args.out, row, c, count);
    }
  }
}

}  // namespace

extern const Int8Isa kInt8Isa = {kName,    kLanes,      kMaxVectors, kInputsOfWord, kInputsOfWord,
                                 kAdds128, &Accumulate, &Finish,     &Convert};

}  // namespace voxserve::kernels::cpu::VOXSERVE_ISA

#undef UNROLLED
#undef VOXSERVE_ISA
