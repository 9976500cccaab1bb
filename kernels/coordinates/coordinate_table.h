#pragma once

// Finds the row of a coordinate's key, whatever the order of rows.
//
// There are two strategies with the same answers:
// - GRID, only on the CPU, holds one int32 per cell of every sample's bounding box: one access, no collisions. Its
//   memory is kept from build to build, and only the cells that were set are reset.
// - HASH is open addressing with linear probing over a power of two of slots, at most half full (on the GPU a quarter),
//   by a hash with a secret seed (hash_seed.h).
//
// cpu::CoordinateTable belongs to one execution context. Build is not thread-safe. Find is const, and many threads may
// call it after Build. The table keeps no pointer to the caller's keys.
//
// cuda::CoordinateTable is a kernel's view of the table that BuildCoordinateTable makes in the caller's memory. For
// rows in Morton order, brick_table.h needs fewer look-ups.

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/hash_seed.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/scratch.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

enum class MapSearch : int32_t {
  kMerge,  // walks both sorted key lists together; needs no table (rulebook_search.h)
  kGrid,
  kHash,
};

struct CoordinateTableParams {
  int32_t dimension = 3;
  MapSearch search = MapSearch::kHash;  // kGrid or kHash
  int64_t max_grid_bytes = int64_t{512} << 20;
  const uint64_t* keys = nullptr;  // [num_keys] ascending, unique
  int64_t num_keys = 0;            // below 2^31
  HashSeed seed = HashSeed::OfProcess();
};
static_assert(std::is_trivially_copyable_v<CoordinateTableParams>);

namespace cpu {

class CoordinateTable {
 public:
  // memory must outlive the table.
  explicit CoordinateTable(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : cells_(memory), touched_cells_(memory), slots_(memory) {}
  CoordinateTable(const CoordinateTable&) = delete;
  CoordinateTable& operator=(const CoordinateTable&) = delete;

  // Replaces the table's contents. Returns the strategy used: kHash instead of kGrid if the grid would need more than
  // max_grid_bytes. The caller accounts for these bytes. After std::bad_alloc the table must be built again.
  MapSearch Build(const CoordinateTableParams& params, ThreadPool& pool);

  // Returns the row of the key, or -1. Any key is valid whose fields did not overflow.
  int32_t Find(uint64_t key) const { return search_ == MapSearch::kGrid ? FindInGrid(key) : FindInHash(key); }

  MapSearch search() const { return search_; }
  // Returns the bytes that the last Build needed, even if an earlier one needed more.
  int64_t needed_bytes() const;

 private:
  // The bounding box of one sample's coordinates, and the number of its first cell.
  struct Box {
    Axes min = {0, 0, 0, 0};
    std::array<int64_t, kMaxDimension> extent = {0, 0, 0, 0};  // all 0 for a sample without coordinates
    int64_t first_cell = 0;
  };
  struct Slot {
    uint64_t key;
    int32_t row;
  };

  int64_t CellOf(uint64_t key) const;  // -1 outside the box of the key's sample
  int32_t FindInGrid(uint64_t key) const;
  int32_t FindInHash(uint64_t key) const;
  bool BuildGrid(const CoordinateTableParams& params, ThreadPool& pool);
  void BuildHash(const CoordinateTableParams& params);
  size_t FirstSlot(uint64_t key) const { return seed_.Hash(key) >> hash_shift_; }

  MapSearch search_ = MapSearch::kHash;
  CoordinateKey layout_{3};
  std::vector<Box> boxes_;                // one per sample
  ScratchVector<int32_t> cells_;          // row, or -1; has the size of the largest grid so far
  int64_t num_cells_ = 0;                 // number of cells in use
  ScratchVector<int64_t> touched_cells_;  // the cells that are not -1
  ScratchVector<Slot> slots_;             // kNoKey: empty
  HashSeed seed_;
  int hash_shift_ = 64;  // 64 - log2(slots)
};

inline int64_t CoordinateTable::CellOf(uint64_t key) const {
  const auto sample = static_cast<size_t>(layout_.Sample(key));
  if (sample >= boxes_.size()) return -1;
  const Box& box = boxes_[sample];
  int64_t cell = 0;
  for (int axis = 0; axis < layout_.dimension(); ++axis) {
    const int64_t at = int64_t{layout_.Coordinate(key, axis)} - box.min[axis];
    if (at < 0 || at >= box.extent[axis]) return -1;
    cell = cell * box.extent[axis] + at;
  }
  return box.first_cell + cell;
}

inline int32_t CoordinateTable::FindInGrid(uint64_t key) const {
  const int64_t cell = CellOf(key);
  return cell < 0 ? -1 : cells_[static_cast<size_t>(cell)];
}

inline int32_t CoordinateTable::FindInHash(uint64_t key) const {
  if (slots_.empty()) return -1;
  const size_t mask = slots_.size() - 1;
  for (size_t slot = FirstSlot(key);; slot = (slot + 1) & mask) {
    if (slots_[slot].key == key) return slots_[slot].row;
    if (slots_[slot].key == kNoKey) return -1;
  }
}

}  // namespace cpu

namespace cuda {

struct CoordinateTableBuildParams {
  const uint64_t* keys = nullptr;  // [capacity] unique; undefined behind their number
  int64_t capacity = 0;            // at most 2^30
  const int64_t* num_keys = nullptr;
  void* memory = nullptr;  // CoordinateTableBytes(*this), 256-byte aligned, any contents; lives as long as the table
  HashSeed seed = HashSeed::OfProcess();
};
static_assert(std::is_trivially_copyable_v<CoordinateTableBuildParams>);

// The part of a slot that a look-up reads in one access of 16 bytes.
struct alignas(16) HashSlot {
  uint64_t key;  // kNoKey: empty; the row is -1 then
  int32_t row;
  int32_t unused;
};

// A view of the device memory that the build's params name. coordinate_table.cuh has Find.
struct CoordinateTable {
  int64_t capacity = 0;
  const int64_t* num_keys = nullptr;
  const HashSlot* slots = nullptr;  // [a power of two]
  HashSeed seed;
};
static_assert(std::is_trivially_copyable_v<CoordinateTable>);

size_t CoordinateTableBytes(const CoordinateTableBuildParams& params);

// Builds the table. The view is set at once, on the host; it may be used on the stream. cudaErrorInvalidValue above
// 2^30 keys.
cudaError_t BuildCoordinateTable(const CoordinateTableBuildParams& params, CoordinateTable* table, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
