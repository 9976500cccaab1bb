#pragma once

// Products of whole numbers of 8 bits on a CPU: sparse convolutions, linear layers and convolutions of images. Inputs
// are uint8 or int8, weights int8, sums int32. The sums are exact, so they depend neither on their order nor on the
// vector instructions.
//
// A product ends with an epilogue in float32, which rounds a value to 8 bits once (kernels/conv/int8_epilogue.h).
//
// Convolution: a thread takes a block of output rows and keeps its sums, which are no part of the output, in its cache.
// As in fetch_on_demand.h it adds the products of one offset after the other, in register tiles of several pairs times
// up to four vectors of channels, and reads input rows in place. A linear layer is the same with one offset, in which
// every row reads itself. A convolution of images (kernels/image/conv2d.h) is the same too: its cells are the offsets,
// and a block lists their pairs itself.

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <type_traits>
#include <vector>

#include "kernels/conv/int8_epilogue.h"
#include "kernels/conv/rulebook.h"
#include "kernels/core/rows.h"
#include "kernels/core/thread_pool.h"
#include "kernels/image/conv2d.h"

namespace voxserve::kernels {

// 64 bytes of packed weights, in a line of the cache.
struct alignas(64) Int8Line {
  uint8_t bytes[64];
};

struct Int8ConvParams {
  RulebookView rulebook;
  ConstRows in;                       // [num_in_rows, in_channels] uint8 or int8
  const Int8Line* weights = nullptr;  // of PackInt8Weights in this process
  Rows out;                           // [num_out_rows, out_channels] float32, uint8 or int8; does not overlap `in`
  Int8Epilogue epilogue;              // the residual may be `out` if their types have the same size
  // A linear layer of the output's rows, whose sums are added to the convolution's before the epilogue. So both have
  // one scale for each output channel. Null data: none.
  ConstRows shortcut_in;                       // [num_out_rows, channels] uint8 or int8
  const Int8Line* shortcut_weights = nullptr;  // of PackInt8Weights with one offset
  // Rows per block, rounded down to whole rulebook tiles. 0: a number that suits the caches.
  int32_t block_rows = 0;
};
static_assert(std::is_trivially_copyable_v<Int8ConvParams>);

struct Int8LinearParams {
  ConstRows in;                       // [rows, in_channels] uint8 or int8
  const Int8Line* weights = nullptr;  // of PackInt8Weights with one offset
  Rows out;                           // [rows, out_channels] float32, uint8 or int8; does not overlap `in`
  Int8Epilogue epilogue;              // as of Int8ConvParams
};
static_assert(std::is_trivially_copyable_v<Int8LinearParams>);

struct Int8Conv2dParams {
  Conv2dGeometry geometry;  // of 1 group
  int64_t num_images = 0;
  int32_t in_rows = 0, in_columns = 0;  // of one image; Conv2dGeometry::OutSize gives those of the output
  ConstRows in;                         // [input positions, in_channels] uint8 or int8
  const Int8Line* weights = nullptr;    // of PackInt8Weights, with an offset for each cell, row by row
  Rows out;                             // [output positions, out_channels] float32, uint8 or int8
  Int8Epilogue epilogue;                // as of Int8ConvParams
};
static_assert(std::is_trivially_copyable_v<Int8Conv2dParams>);

// Int8 weights of a product, and the scales by which they were divided.
struct QuantisedWeights {
  std::vector<int8_t> values;  // as the weights, -127 to 127
  std::vector<float> scale;    // [out_channels]; 0 where all weights of a channel are 0
};

// Rounds weights [..., out_channels] to whole numbers. Each output channel has a scale of its own: of several between
// 3/4 of its largest absolute weight / 127 and the whole, the one with the least sum of squared errors. So a channel
// may clip its largest weights to round all others less. Weights must be finite.
QuantisedWeights QuantiseWeights(const std::vector<float>& weights, int32_t out_channels);

namespace cpu {

// Packs weights [K, in_channels, out_channels] in the order in which the products read them on this machine.
std::vector<Int8Line> PackInt8Weights(const int8_t* weights, int32_t num_offsets, int32_t in_channels,
                                      int32_t out_channels);

// The caller's thread and the pool's threads take the blocks of rows. A block's sums are allocated from `memory`, which
// must be thread-safe; if it refuses, the functions throw std::bad_alloc.
void Int8Conv(const Int8ConvParams& params, ThreadPool& pool, std::pmr::memory_resource* memory);
void Int8Linear(const Int8LinearParams& params, ThreadPool& pool, std::pmr::memory_resource* memory);
void Int8Conv2d(const Int8Conv2dParams& params, ThreadPool& pool, std::pmr::memory_resource* memory);

// Returns the instruction set that the products use: "amx", "avx512vnni", "avx2" or "baseline".
const char* Int8InstructionSet();

}  // namespace cpu
}  // namespace voxserve::kernels
