#pragma once

// A CoordinateTable finds the row of a key among the keys of a level.
//
// There are two strategies with the same results:
// - kGrid, only on the CPU, is an array with one int32 per cell of every sample's bounding box: a look-up is one
//   access. The array is kept from build to build, and a build resets only the cells that the build before had set.
// - kHash is a hash table: open addressing with linear probing over a power of two of slots, at most half full (on the
//   GPU a quarter), by a hash with a secret seed (hash_seed.h).
//
// cpu::CoordinateTable: Build is not thread-safe. Find is const, and many threads may call it after Build. The table
// keeps no pointer to the caller's keys.
//
// cuda::CoordinateTable is a kernel's view of the hash table that BuildCoordinateTable makes in the caller's memory.
// The keys may be in any order. If they are in Morton order, brick_table.h needs fewer look-ups.

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

// The ways in which the CPU searches the pairs of a rulebook.
enum class MapSearch : int32_t {
  kMerge,  // walks the sorted keys of inputs and outputs together; needs no table (rulebook_search.h)
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
  // The table's arrays are allocated from `memory`, which must outlive the table.
  explicit CoordinateTable(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : cells_(memory), touched_cells_(memory), slots_(memory) {}
  CoordinateTable(const CoordinateTable&) = delete;
  CoordinateTable& operator=(const CoordinateTable&) = delete;

  // Replaces the table's contents. Returns the strategy that was used: kHash instead of kGrid if the grid would need
  // more than max_grid_bytes. Throws std::bad_alloc; the table must then be built again before Find.
  MapSearch Build(const CoordinateTableParams& params, ThreadPool& pool);

  // Returns the row of the key, or -1 if the table does not have it. The key's coordinate may be in the margin outside
  // the limits (coordinate_key.h).
  int32_t Find(uint64_t key) const { return search_ == MapSearch::kGrid ? FindInGrid(key) : FindInHash(key); }

  MapSearch search() const { return search_; }
  // Returns the bytes that the last Build needed. The table may hold more, if an earlier Build needed more.
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
  ScratchVector<int32_t> cells_;          // each cell's row, or -1; has the size of the largest grid so far
  int64_t num_cells_ = 0;                 // number of cells of the present grid
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
  const uint64_t* keys = nullptr;  // [capacity] CoordinateKeys or MortonKeys, unique; only the first num_keys are read
  int64_t capacity = 0;            // at most 2^30
  const int64_t* num_keys = nullptr;  // [1] in device memory; null: capacity keys exist
  void* memory = nullptr;  // CoordinateTableBytes(*this), 256-byte aligned, any contents; lives as long as the table
  HashSeed seed = HashSeed::OfProcess();
};
static_assert(std::is_trivially_copyable_v<CoordinateTableBuildParams>);

// The part of a slot that a look-up reads in one access of 16 bytes.
struct alignas(16) HashSlot {
  uint64_t key;  // kNoKey: the slot is empty, and its row is -1
  int32_t row;
  int32_t unused;
};

// A view of the memory that CoordinateTableBuildParams names. Kernels look up keys with HashTable
// (coordinate_table.cuh).
struct CoordinateTable {
  int64_t capacity = 0;
  const int64_t* num_keys = nullptr;
  const HashSlot* slots = nullptr;  // [a power of two]; kernels use only as many as num_keys keys need
  HashSeed seed;
};
static_assert(std::is_trivially_copyable_v<CoordinateTable>);

size_t CoordinateTableBytes(const CoordinateTableBuildParams& params);

// Builds a table. Sets *table on the host before it returns; kernels that are launched on the stream afterwards may use
// the view. Returns cudaErrorInvalidValue if capacity is above 2^30.
cudaError_t BuildCoordinateTable(const CoordinateTableBuildParams& params, CoordinateTable* table, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
