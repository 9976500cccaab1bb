#pragma once

// Int8Isa is the interface between int8_product_cpu.cc, int8_rows_cpu.cc and int8_tile.h, which is compiled once for
// each vector instruction set.

#include <cstdint>

namespace voxserve::kernels::cpu {

// The pairs of one kernel offset whose output rows are in one block. Pitches are in values.
struct Int8AccumulateArgs {
  int64_t num_pairs;
  const int32_t* in_rows;
  const int32_t* out_rows;
  const uint8_t* in;  // uint8, or int8 where is_signed
  bool is_signed;
  int64_t in_pitch;
  int32_t in_channels;
  const uint8_t* weights;  // this offset's panels, aligned to 64 bytes
  int32_t* sums;           // [rows of the block, padded channels], aligned to 64 bytes
  int32_t first_out_row;   // the row of sums[0]
  int32_t num_vectors;     // the padded channels' vectors
};

// Where values of a row lie, and their type. Vectors of int8 and uint8 are read and written by the channel.
enum class Int8Type : int32_t { kFloat32, kUint8, kInt8 };
struct Int8Values {
  void* data;     // null: none
  int64_t pitch;  // values
  Int8Type type;
};

// Rows whose sums are complete.
struct Int8FinishArgs {
  int64_t num_rows;
  int32_t channels;
  int32_t* sums;  // [num_rows, padded channels]; overwritten
  int32_t sums_pitch;
  const float* multiplier;
  const float* bias;            // null: 0
  Int8Values residual;          // of the first row
  const float* residual_scale;  // null: 1
  bool has_relu;
  // Applies any other activation to a row; null: none.
  void (*activate)(const void* activation, float* row, int32_t channels);
  const void* activation;
  const float* inverse_scale;  // null: 1
  Int8Values out;              // of the first row
};

struct Int8ConvertArgs {
  int64_t num_rows;
  int32_t channels;
  Int8Values in;
  const float* in_scale;
  const float* inverse_scale;
  Int8Values out;
};

// A vector instruction set. Weights are packed by `inputs_of_word` and panels of up to `max_vectors` vectors of `lanes`
// output channels. A panel begins with a vector of words that is subtracted from the sums if inputs are signed and the
// set multiplies unsigned numbers (adds_128): 128 * the sum of the channel's weights. Then follows a word of each
// output channel for each inputs_of_word input channels: 4 weights of int8, or 2 of int16. Words of zeros make their
// input channels a multiple of inputs_of_step.
struct Int8Isa {
  const char* name;
  int32_t lanes;
  int32_t max_vectors;
  int32_t inputs_of_word;
  int32_t inputs_of_step;
  bool adds_128;
  void (*accumulate)(const Int8AccumulateArgs&);  // sums[out_row] += in[in_row] * weights for each pair
  void (*finish)(const Int8FinishArgs&);
  void (*convert)(const Int8ConvertArgs&);
};

// Returns how many of the vectors that are left the next panel has. Three and two leave more rows of a tile in
// registers than four and one. It has internal linkage, as int8_tile.h requires.
static constexpr int32_t VectorsOfPanel(int32_t num_left, int32_t max_vectors) {
  if (max_vectors == 4 && (num_left == 5 || num_left == 6)) return 3;
  return num_left < max_vectors ? num_left : max_vectors;
}

namespace baseline {
extern const Int8Isa kInt8Isa;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Int8Isa kInt8Isa;
}
namespace vnni {
extern const Int8Isa kInt8Isa;
}
namespace amx {
extern const Int8Isa kInt8Isa;
}
#endif

}  // namespace voxserve::kernels::cpu
