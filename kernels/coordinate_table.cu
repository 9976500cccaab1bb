#include <algorithm>
#include <bit>
#include <cub/block/block_scan.cuh>

#include "kernels/coordinate_table.cuh"
#include "kernels/coordinate_table.h"
#include "kernels/launch.cuh"
#include "kernels/visit_dimension.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int kBoxThreads = kMaxSamples;  // one a sample, in one block
constexpr int64_t kWordsAThread = 4;      // of 16 bytes, when memory is filled
constexpr int64_t kMaxExtent = INT32_MAX;

int64_t NumHashSlots(int64_t num_keys) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(kMinHashSlots, 2 * num_keys))));
}

// What lies in params.memory.
struct TableMemory {
  HashSlot* slots;
  FieldBounds* bounds;
  GridBox* boxes;
  int32_t* uses_grid;
  size_t bytes;
};

TableMemory Cut(const CoordinateTableBuildParams& params) {
  WorkspaceCutter cutter(params.memory);
  TableMemory memory{};
  const int64_t num_boxes = params.search == MapSearch::kGrid ? params.num_samples : 0;
  memory.slots = cutter.Take<HashSlot>(NumHashSlots(params.capacity));
  memory.bounds = cutter.Take<FieldBounds>(num_boxes);
  memory.boxes = cutter.Take<GridBox>(num_boxes);
  memory.uses_grid = cutter.Take<int32_t>(1);
  memory.bytes = cutter.bytes();
  return memory;
}

// Empties as many slots as the keys will take, and the bounds.
__global__ void EmptyTableKernel(HashSlot* slots, int64_t capacity, const int64_t* num_keys, FieldBounds* bounds,
                                 int32_t num_bounds) {
  static_assert(sizeof(HashSlot) == sizeof(uint4) && sizeof(FieldBounds) % sizeof(uint4) == 0);
  const uint4 ones = {~0u, ~0u, ~0u, ~0u};
  const int64_t thread = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t num_threads = int64_t{gridDim.x} * blockDim.x;
  const int64_t num_slots = HashTable(slots, NumRows(capacity, num_keys)).num_slots();
  for (int64_t i = thread; i < num_slots; i += num_threads) reinterpret_cast<uint4*>(slots)[i] = ones;
  const int64_t bounds_words = num_bounds * static_cast<int64_t>(sizeof(FieldBounds) / sizeof(uint4));
  for (int64_t i = thread; i < bounds_words; i += num_threads) reinterpret_cast<uint4*>(bounds)[i] = ones;
}

// One block: a thread makes a sample's box, then the boxes are laid end to end.
__global__ void __launch_bounds__(kBoxThreads)
    GridBoxesKernel(int32_t dimension, const FieldBounds* bounds, int32_t num_samples, int64_t max_cells,
                    GridBox* boxes, int32_t* uses_grid) {
  using Scan = cub::BlockScan<int64_t, kBoxThreads>;
  __shared__ typename Scan::TempStorage scan_storage;
  const auto sample = static_cast<int32_t>(threadIdx.x);
  GridBox box{};
  int64_t volume = 0;
  if (sample < num_samples) {
    const FieldBounds& of_sample = bounds[sample];
    const bool has_sites = of_sample.lowest[0] <= ~of_sample.highest_complement[0];
    bool fits = true;
    volume = has_sites ? 1 : 0;
    for (int axis = 0; axis < dimension && has_sites; ++axis) {
      const int64_t lowest = of_sample.lowest[axis];
      const int64_t extent = int64_t{~of_sample.highest_complement[axis]} - lowest + 1;
      fits = fits && extent <= kMaxExtent && extent <= max_cells / volume;
      if (!fits) break;
      volume *= extent;
      box.lowest[axis] = static_cast<uint32_t>(lowest);
      box.extent[axis] = static_cast<int32_t>(extent);
    }
    if (!fits) volume = max_cells + 1;
  }
  int64_t total = 0;
  Scan(scan_storage).ExclusiveSum(volume, box.first_cell, total);
  if (sample < num_samples) boxes[sample] = box;
  if (sample == 0) *uses_grid = total <= max_cells ? 1 : 0;
}

// kHash: *uses_grid is set here, as no grid was tried.
template <int kDimension>
__global__ void InsertKeysKernel(MapSearch search, const uint64_t* keys, int64_t capacity, const int64_t* num_keys,
                                 HashSlot* slots, const GridBox* boxes, int32_t* grid_cells, int32_t* uses_grid) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (search == MapSearch::kHash && row == 0) *uses_grid = 0;
  const int64_t num_rows = NumRows(capacity, num_keys);
  if (row >= num_rows) return;
  const uint64_t key = keys[row];
  if (search == MapSearch::kGrid && *uses_grid != 0) {
    grid_cells[GridCell<kDimension>(boxes, key)] = static_cast<int32_t>(row);
    return;
  }
  // Which of two colliding keys comes first is left to chance, and nobody who looks up can tell.
  const HashTable table(slots, num_rows);
  int64_t slot = table.FirstSlot(key);
  for (;; slot = table.NextSlot(slot)) {
    auto* const word = reinterpret_cast<unsigned long long*>(&slots[slot].key);
    if (atomicCAS(word, static_cast<unsigned long long>(kNoKey), static_cast<unsigned long long>(key)) == kNoKey) break;
  }
  slots[slot].row = static_cast<int32_t>(row);
}

template <int kDimension>
__global__ void ResetGridKernel(const uint64_t* keys, int64_t capacity, const int64_t* num_keys, const GridBox* boxes,
                                int32_t* grid_cells, const int32_t* uses_grid) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= NumRows(capacity, num_keys) || *uses_grid == 0) return;
  grid_cells[GridCell<kDimension>(boxes, keys[row])] = -1;
}

}  // namespace

size_t CoordinateTableBytes(const CoordinateTableBuildParams& params) { return Cut(params).bytes; }

cudaError_t BuildCoordinateTable(const CoordinateTableBuildParams& params, CoordinateTable* table,
                                 cudaStream_t stream) {
  const NvtxRange range("BuildCoordinateTable");
  const TableMemory memory = Cut(params);
  *table = {.dimension = params.dimension,
            .search = params.search,
            .capacity = params.capacity,
            .num_keys = params.num_keys,
            .slots = memory.slots,
            .boxes = memory.boxes,
            .grid_cells = params.grid_cells,
            .uses_grid = memory.uses_grid};
  const bool tries_grid = params.search == MapSearch::kGrid;
  // Without keys the table is still made: an empty one.
  EmptyTableKernel<<<NumBlocks(NumHashSlots(params.capacity) / kWordsAThread), kBlockThreads, 0, stream>>>(
      memory.slots, params.capacity, params.num_keys, memory.bounds, tries_grid ? params.num_samples : 0);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  return VisitDimension(params.dimension, [&](auto dimension) {
    if (tries_grid) {
      SampleBoundsKernel<dimension()><<<NumBoundsBlocks(params.capacity), kBlockThreads, 0, stream>>>(
          params.keys, params.capacity, params.num_keys, memory.bounds);
      VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
      GridBoxesKernel<<<1, kBoxThreads, 0, stream>>>(params.dimension, memory.bounds, params.num_samples,
                                                     params.max_grid_cells, memory.boxes, memory.uses_grid);
      VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
    }
    InsertKeysKernel<dimension()><<<NumBlocks(params.capacity), kBlockThreads, 0, stream>>>(
        params.search, params.keys, params.capacity, params.num_keys, memory.slots, memory.boxes, params.grid_cells,
        memory.uses_grid);
    return LaunchStatus(stream);
  });
}

cudaError_t ResetGrid(const CoordinateTable& table, const uint64_t* keys, int64_t capacity, const int64_t* num_keys,
                      cudaStream_t stream) {
  if (table.search != MapSearch::kGrid || capacity == 0) return cudaSuccess;
  const NvtxRange range("ResetGrid");
  return VisitDimension(table.dimension, [&](auto dimension) {
    ResetGridKernel<dimension()><<<NumBlocks(capacity), kBlockThreads, 0, stream>>>(
        keys, capacity, num_keys, table.boxes, table.grid_cells, table.uses_grid);
    return LaunchStatus(stream);
  });
}

}  // namespace voxserve::kernels::cuda
