#pragma once

// A BrickTable finds the row of a MortonKey among the keys of a level, on a GPU. The keys must be sorted.
//
// A brick is an aligned cube of at most 64 cells: 64, 8 x 8, 4 x 4 x 4 and 2 x 2 x 2 x 2 in 1 to 4 dimensions. In
// Morton order, the sites of a brick are consecutive rows. So a bit mask of the brick's cells and the row of its first
// site give the row of each site (like the leaf nodes of Museth, VDB: High-Resolution Sparse Volumes with Dynamic
// Topology, ACM Transactions on Graphics 32(3), 2013). Bricks are found in a hash table: open addressing with linear
// probing over a power of two of slots, by a hash with a secret seed (hash_seed.h). A 3 x 3 x 3 kernel of dilation 1
// reaches at most 8 bricks, so an output row needs 8 look-ups instead of 27. Neighbouring rows whose cells begin in the
// same brick share these look-ups.
//
// BrickTable is a kernel's view of the table that BuildBrickTables makes in the caller's memory. The number of keys is
// in device memory, and the host need not know it.

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
  int32_t first_row;  // row of the brick's first site; the rows of its other sites follow
  int32_t unused;
};

// A view of the memory that BrickTableParams names. Kernels look up keys with BrickSlots (brick_table.cuh).
struct BrickTable {
  int32_t dimension = 3;
  int64_t capacity = 0;                  // the most keys that the table can have
  const int64_t* num_keys = nullptr;     // [1] in device memory; null: capacity keys exist
  const uint64_t* brick_keys = nullptr;  // [slots] MortonKeys without the bits of the cell's place; kNoKey: empty slot
  const Brick* bricks = nullptr;         // [slots]
  HashSeed seed;
};
static_assert(std::is_trivially_copyable_v<BrickTable>);

struct BrickTableParams {
  int32_t dimension = 3;              // 1 to kMaxDimension
  const uint64_t* keys = nullptr;     // [capacity] MortonKeys, ascending, unique; only the first num_keys are read
  int64_t capacity = 0;               // at most 2^31
  const int64_t* num_keys = nullptr;  // [1] in device memory; null: capacity keys exist
  void* memory = nullptr;  // BrickTableBytes(*this), 256-byte aligned, any contents; lives as long as the table
  HashSeed seed = HashSeed::OfProcess();
};
static_assert(std::is_trivially_copyable_v<BrickTableParams>);

// Returns the bytes of params.memory, a multiple of 256. The result depends only on the capacity.
size_t BrickTableBytes(const BrickTableParams& params);

// Builds one table for each element of `params`. Sets the views in `tables` on the host before it returns; kernels that
// are launched on the stream afterwards may use them. Returns cudaErrorInvalidValue if the tables have different
// dimensions or a capacity is above 2^31.
cudaError_t BuildBrickTables(std::span<const BrickTableParams> params, std::span<BrickTable> tables,
                             cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
