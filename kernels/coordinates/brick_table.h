#pragma once

// From a coordinate's key to its row, on a GPU whose rows are in Morton order.
//
// A brick is an aligned cube of at most 64 cells: 64, 8 x 8, 4 x 4 x 4 and 2 x 2 x 2 x 2 in 1 to 4 dimensions. The
// sites in it are consecutive rows, so a mask of its cells and its first row say where each of them is (as the leaf
// nodes of Museth, VDB: High-Resolution Sparse Volumes with Dynamic Topology, ACM Transactions on Graphics 32(3),
// 2013). Bricks are found by hash: open addressing with linear probing over a power of two of slots, hashed by
// Fibonacci multiplication. A kernel of 27 cells reaches at most 8 bricks, so it takes 8 look-ups for an output row,
// not 27.
//
// BrickTable is a view for kernels of what BuildBrickTables made in the caller's memory. How many keys there are only
// the device knows: kernels ask the view.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels::cuda {

// What a look-up reads in one access of 16 bytes.
struct alignas(16) Brick {
  uint64_t mask;      // of the cells that are sites, by their place in Morton order
  int32_t first_row;  // of the lowest of them; the others follow
  int32_t unused;
};

// Device memory of the build's params. Find is in brick_table.cuh.
struct BrickTable {
  int32_t dimension = 3;
  int64_t capacity = 0;  // keys at most
  const int64_t* num_keys = nullptr;
  const uint64_t* brick_keys = nullptr;  // [slots] what the bricks' keys have above their places; kNoKey: empty
  const Brick* bricks = nullptr;         // [slots]
};
static_assert(std::is_trivially_copyable_v<BrickTable>);

struct BrickTableParams {
  int32_t dimension = 3;           // 1 to kMaxDimension
  const uint64_t* keys = nullptr;  // [capacity] MortonKeys, ascending, unique; rubbish past their number
  int64_t capacity = 0;            // at most 2^30
  const int64_t* num_keys = nullptr;
  void* memory = nullptr;  // BrickTableBytes(*this), 256-byte aligned, contents free; lives as long as the table
};
static_assert(std::is_trivially_copyable_v<BrickTableParams>);

// Follows from the capacity alone; a multiple of 256.
size_t BrickTableBytes(const BrickTableParams& params);

// Sets tables, on the host, at once; they may be used on the stream. cudaErrorInvalidValue unless all are of one
// dimension, with at most 2^30 keys.
cudaError_t BuildBrickTables(std::span<const BrickTableParams> params, std::span<BrickTable> tables,
                             cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
