// The sums of products in 8 bits by the tiles of AMX (Intel, Advanced Matrix Extensions; Intel 64 and IA-32
// Architectures Software Developer's Manual, chapter "Programming with Intel AMX"). A tile is 16 rows of 64 bytes: the
// inputs of 16 pairs, weights as words of 4 input channels by 16 output channels, or sums. One instruction multiplies
// 16 x 64 by 64 x 16 numbers. The rows of a tile in memory must have one distance, so inputs and sums of pairs pass
// through buffers. Values are converted as with AVX-512.

#include <immintrin.h>

#include <cstddef>

#include "kernels/int8/int8_isa.h"

namespace voxserve::kernels::cpu::amx {
namespace {

constexpr int kTileRows = 16;
constexpr int kRowBytes = 64;
constexpr int kLanes = kRowBytes / 4;
constexpr int kMaxVectors = 2;
constexpr int kGroupPairs = 2 * kTileRows;
constexpr int kMaxSteps = 16;  // of 64 input channels, whose inputs are copied at once

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t first_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

constexpr TileConfig AllTilesWhole() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kRowBytes;
    config.rows[tile] = kTileRows;
  }
  return config;
}

// The inputs of a group of pairs, and their products with one panel.
struct alignas(64) Group {
  uint8_t inputs[kMaxSteps][kGroupPairs][kRowBytes];
  int32_t products[kMaxVectors][kGroupPairs][kLanes];
};

// Copies the inputs of pairs, channels [begin, end), in steps of 64; zeros follow the last channel.
void CopyInputs(const Int8AccumulateArgs& args, const int32_t* in_rows, int num_pairs, int32_t begin, int32_t end,
                Group* group) {
  for (int pair = 0; pair < num_pairs; ++pair) {
    const uint8_t* const row = args.in + in_rows[pair] * args.in_pitch;
    for (int32_t c = begin, step = 0; c < end; c += kRowBytes, ++step) {
      const int32_t left = end - c;
      const __mmask64 mask = left < kRowBytes ? (1ULL << left) - 1 : ~0ULL;
      _mm512_store_si512(group->inputs[step][pair], _mm512_maskz_loadu_epi8(mask, row + c));
    }
  }
}

// Adds the products of a tile of inputs and one of weights to a tile of sums. A tile's number is a part of its
// instruction, so this is no function.
#define MULTIPLY_ADD(sums, inputs, weights) \
  do {                                      \
    if constexpr (kSigned) {                \
      _tile_dpbssd(sums, inputs, weights);  \
    } else {                                \
      _tile_dpbusd(sums, inputs, weights);  \
    }                                       \
  } while (false)

// Tiles 0 and 1 hold the sums of the first 16 pairs, 2 and 3 those of the last; tile 4 inputs; 5 and 6 weights.
template <bool kSigned, int kVectors, bool kHasSecond>
void MultiplyPanel(const uint8_t* weights, int num_steps, Group* group) {
  __asm__ volatile("" ::: "memory");  // the tiles are read after the inputs are stored
  constexpr int kPitch = kVectors * kRowBytes;
  _tile_zero(0);
  if constexpr (kVectors > 1) _tile_zero(1);
  if constexpr (kHasSecond) _tile_zero(2);
  if constexpr (kHasSecond && kVectors > 1) _tile_zero(3);
  for (int step = 0; step < num_steps; ++step, weights += kTileRows * kPitch) {
    _tile_loadd(5, weights, kPitch);
    if constexpr (kVectors > 1) _tile_loadd(6, weights + kRowBytes, kPitch);
    _tile_loadd(4, group->inputs[step][0], kRowBytes);
    MULTIPLY_ADD(0, 4, 5);
    if constexpr (kVectors > 1) MULTIPLY_ADD(1, 4, 6);
    if constexpr (kHasSecond) {
      _tile_loadd(4, group->inputs[step][kTileRows], kRowBytes);
      MULTIPLY_ADD(2, 4, 5);
      if constexpr (kVectors > 1) MULTIPLY_ADD(3, 4, 6);
    }
  }
  _tile_stored(0, group->products[0][0], kRowBytes);
  if constexpr (kVectors > 1) _tile_stored(1, group->products[1][0], kRowBytes);
  if constexpr (kHasSecond) _tile_stored(2, group->products[0][kTileRows], kRowBytes);
  if constexpr (kHasSecond && kVectors > 1) _tile_stored(3, group->products[1][kTileRows], kRowBytes);
}

#undef MULTIPLY_ADD

template <bool kSigned, int kVectors>
void AddPanel(const Int8AccumulateArgs& args, const uint8_t* weights, int num_steps, const int32_t* out_rows,
              int num_pairs, int32_t* sums, int64_t sums_pitch, Group* group) {
  if (num_pairs > kTileRows) {
    MultiplyPanel<kSigned, kVectors, true>(weights, num_steps, group);
  } else {
    MultiplyPanel<kSigned, kVectors, false>(weights, num_steps, group);
  }
  for (int pair = 0; pair < num_pairs; ++pair) {
    int32_t* const sum = sums + (out_rows[pair] - args.first_out_row) * sums_pitch;
    for (int v = 0; v < kVectors; ++v) {
      const __m512i product = _mm512_load_si512(group->products[v][pair]);
      _mm512_storeu_si512(sum + v * kLanes, _mm512_add_epi32(_mm512_loadu_si512(sum + v * kLanes), product));
    }
  }
}

template <bool kSigned>
void AccumulateGroups(const Int8AccumulateArgs& args) {
  const int64_t sums_pitch = int64_t{args.num_vectors} * kLanes;
  const int32_t all_steps = (args.in_channels + kRowBytes - 1) / kRowBytes;
  Group group;
  for (int64_t p = 0; p < args.num_pairs; p += kGroupPairs) {
    const int num_pairs = static_cast<int>(args.num_pairs - p < kGroupPairs ? args.num_pairs - p : kGroupPairs);
    for (int32_t begin = 0; begin < all_steps; begin += kMaxSteps) {
      const int32_t num_steps = all_steps - begin < kMaxSteps ? all_steps - begin : kMaxSteps;
      const int32_t end = (begin + num_steps) * kRowBytes;
      CopyInputs(args, args.in_rows + p, num_pairs, begin * kRowBytes, end < args.in_channels ? end : args.in_channels,
                 &group);
      const uint8_t* panel = args.weights;
      int32_t* sums = args.sums;
      for (int32_t left = args.num_vectors; left > 0;) {
        const int32_t vectors = VectorsOfPanel(left, kMaxVectors);
        // A line of words comes first in a panel (Int8Isa), then 16 lines of words a step.
        const uint8_t* const weights = panel + (1 + begin * kTileRows) * vectors * kRowBytes;
        if (vectors == 2) {
          AddPanel<kSigned, 2>(args, weights, num_steps, args.out_rows + p, num_pairs, sums, sums_pitch, &group);
        } else {
          AddPanel<kSigned, 1>(args, weights, num_steps, args.out_rows + p, num_pairs, sums, sums_pitch, &group);
        }
        panel += int64_t{1 + all_steps * kTileRows} * vectors * kRowBytes;
        sums += vectors * kLanes;
        left -= vectors;
      }
    }
  }
}

void Accumulate(const Int8AccumulateArgs& args) {
  static constexpr TileConfig kConfig = AllTilesWhole();
  _tile_loadconfig(&kConfig);
  if (args.is_signed) {
    AccumulateGroups<true>(args);
  } else {
    AccumulateGroups<false>(args);
  }
  _tile_release();  // so that no other code's switch of threads saves tiles
}

void Finish(const Int8FinishArgs& args) { vnni::kInt8Isa.finish(args); }
void Convert(const Int8ConvertArgs& args) { vnni::kInt8Isa.convert(args); }

}  // namespace

extern const Int8Isa kInt8Isa = {.name = "amx",
                                 .lanes = kLanes,
                                 .max_vectors = kMaxVectors,
                                 .inputs_of_word = 4,
                                 .inputs_of_step = kRowBytes,
                                 .adds_128 = false,
                                 .accumulate = &Accumulate,
                                 .finish = &Finish,
                                 .convert = &Convert};

}  // namespace voxserve::kernels::cpu::amx
