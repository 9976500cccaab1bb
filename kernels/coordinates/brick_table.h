#pragma once

// Finds the row of a coordinate's key on a GPU, for rows in Morton order.
//
// A brick is an aligned cube of at most 64 cells: 64, 8 x 8, 4 x 4 x 4 and 2 x 2 x 2 x 2 in 1 to 4 dimensions. Its
// sites are consecutive rows, so a bit mask of its cells and its first row give the row of each site (like the leaf
// nodes of Museth, VDB: High-Resolution Sparse Volumes with Dynamic Topology, ACM Transactions on Graphics 32(3),
// 2013). Bricks are found by hash: open addressing with linear probing over a power of two of slots, by a hash with a
// secret seed (hash_seed.h). A kernel of 27 cells reaches at most 8 bricks, so an output row takes 8 look-ups instead
// of 27.
//
// BrickTable is a kernel's view of the table that BuildBrickTables makes in the caller's memory. Only the device knows
// the number of keys, so kernels ask the view for it.

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/coordinates/hash_seed.h"
#include "kernels/core/cuda_stream.h"

namespace voxserve::kernels::cuda {

// The part of a slot that a look-up reads in one access of 16 bytes.
struct alignas(16) Brick {
  uint64_t mask;      // bit p: the cell at place p in Morton order is a site
  int32_t first_row;  // row of the brick's first site; the others follow
  int32_t unused;
};

// A view of the device memory that the build's params name. brick_table.cuh has Find.
struct BrickTable {
  int32_t dimension = 3;
  int64_t capacity = 0;  // most keys
  const int64_t* num_keys = nullptr;
  const uint64_t* brick_keys = nullptr;  // [slots] the bricks' keys, without the bits of the place; kNoKey: empty
  const Brick* bricks = nullptr;         // [slots]
  HashSeed seed;
};
static_assert(std::is_trivially_copyable_v<BrickTable>);

struct BrickTableParams {
  int32_t dimension = 3;           // 1 to kMaxDimension
  const uint64_t* keys = nullptr;  // [capacity] MortonKeys, ascending, unique; undefined behind their number
  int64_t capacity = 0;            // at most 2^30
  const int64_t* num_keys = nullptr;
  void* memory = nullptr;  // BrickTableBytes(*this), 256-byte aligned, any contents; lives as long as the table
  HashSeed seed = HashSeed::OfProcess();
};
static_assert(std::is_trivially_copyable_v<BrickTableParams>);

// Depends only on the capacity; a multiple of 256.
size_t BrickTableBytes(const BrickTableParams& params);

// Builds tables. The views are set at once, on the host; they may be used on the stream. cudaErrorInvalidValue unless
// all tables have the same dimension and at most 2^30 keys.
cudaError_t BuildBrickTables(std::span<const BrickTableParams> params, std::span<BrickTable> tables,
                             cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
