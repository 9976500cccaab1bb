#include <algorithm>
#include <bit>
#include <cub/block/block_scan.cuh>

#include "kernels/coordinates/coordinate_table.cuh"
#include "kernels/coordinates/coordinate_table.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/visit_dimension.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int kBoxThreads = kMaxSamples;  // one a sample, in one block
constexpr int kMaxTablesALaunch = 32;     // they travel as kernel parameters
constexpr int64_t kMaxBlocksATable = 512;
constexpr int64_t kMaxExtent = INT32_MAX;

int64_t NumHashSlots(int64_t num_keys) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max(kMinHashSlots, kSlotsAKey * num_keys))));
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

// One table of a launch; blockIdx.y is its number.
struct TableBuild {
  bool tries_grid;
  int32_t num_bounds;
  const uint64_t* keys;
  int64_t capacity;
  const int64_t* num_keys;
  HashSlot* slots;
  FieldBounds* bounds;
  GridBox* boxes;
  int32_t* grid_cells;
  int32_t* uses_grid;
};

struct TableBatch {
  TableBuild tables[kMaxTablesALaunch];
};
static_assert(sizeof(TableBatch) <= kMaxParamBytes);

// Empties as many slots as the keys will take, and the bounds. Where no grid is tried *uses_grid is set here.
__global__ void __launch_bounds__(kBlockThreads) EmptyTablesKernel(const __grid_constant__ TableBatch batch) {
  static_assert(sizeof(HashSlot) == sizeof(uint4) && sizeof(FieldBounds) % sizeof(uint4) == 0);
  const TableBuild& table = batch.tables[blockIdx.y];
  const uint4 ones = {~0u, ~0u, ~0u, ~0u};
  const int64_t thread = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  const int64_t num_threads = int64_t{gridDim.x} * kBlockThreads;
  if (thread == 0 && !table.tries_grid) *table.uses_grid = 0;
  const int64_t num_slots = HashTable(table.slots, NumRows(table.capacity, table.num_keys)).num_slots();
  auto* const slots = reinterpret_cast<uint4*>(table.slots);
  for (int64_t i = thread; i < num_slots; i += num_threads) slots[i] = ones;
  const int64_t bounds_words = table.num_bounds * static_cast<int64_t>(sizeof(FieldBounds) / sizeof(uint4));
  auto* const bounds = reinterpret_cast<uint4*>(table.bounds);
  for (int64_t i = thread; i < bounds_words; i += num_threads) bounds[i] = ones;
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

template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads) InsertKeysKernel(const __grid_constant__ TableBatch batch) {
  const TableBuild& build = batch.tables[blockIdx.y];
  const int64_t num_rows = NumRows(build.capacity, build.num_keys);
  const bool is_grid = build.tries_grid && *build.uses_grid != 0;
  const HashTable table(build.slots, num_rows);
  for (int64_t row = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; row < num_rows;
       row += int64_t{gridDim.x} * kBlockThreads) {
    const uint64_t key = build.keys[row];
    if (is_grid) {
      build.grid_cells[GridCell<kDimension>(build.boxes, key)] = static_cast<int32_t>(row);
      continue;
    }
    // Which of two colliding keys comes first is left to chance, and nobody who looks up can tell.
    uint32_t slot = table.FirstSlot(key);
    for (;; slot = table.NextSlot(slot)) {
      auto* const word = reinterpret_cast<unsigned long long*>(&build.slots[slot].key);
      if (atomicCAS(word, static_cast<unsigned long long>(kNoKey), static_cast<unsigned long long>(key)) == kNoKey) {
        break;
      }
    }
    build.slots[slot].row = static_cast<int32_t>(row);
  }
}

template <int kDimension>
__global__ void ResetGridKernel(const uint64_t* keys, int64_t capacity, const int64_t* num_keys, const GridBox* boxes,
                                int32_t* grid_cells, const int32_t* uses_grid) {
  const int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (row >= NumRows(capacity, num_keys) || *uses_grid == 0) return;
  grid_cells[GridCell<kDimension>(boxes, keys[row])] = -1;
}

cudaError_t BuildBatch(std::span<const CoordinateTableBuildParams> params, std::span<CoordinateTable> tables,
                       cudaStream_t stream) {
  TableBatch batch{};
  const CoordinateTableBuildParams* grid = nullptr;
  TableMemory grid_memory{};
  int64_t max_capacity = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    const CoordinateTableBuildParams& build = params[i];
    if (NumHashSlots(build.capacity) > kMaxHashSlots) return cudaErrorInvalidValue;
    const TableMemory memory = Cut(build);
    const bool tries_grid = build.search == MapSearch::kGrid;
    tables[i] = {.dimension = build.dimension,
                 .search = build.search,
                 .capacity = build.capacity,
                 .num_keys = build.num_keys,
                 .slots = memory.slots,
                 .boxes = memory.boxes,
                 .grid_cells = build.grid_cells,
                 .uses_grid = memory.uses_grid};
    batch.tables[i] = {.tries_grid = tries_grid,
                       .num_bounds = tries_grid ? build.num_samples : 0,
                       .keys = build.keys,
                       .capacity = build.capacity,
                       .num_keys = build.num_keys,
                       .slots = memory.slots,
                       .bounds = memory.bounds,
                       .boxes = memory.boxes,
                       .grid_cells = build.grid_cells,
                       .uses_grid = memory.uses_grid};
    if (tries_grid) {
      grid = &build;
      grid_memory = memory;
    }
    max_capacity = std::max(max_capacity, build.capacity);
  }

  // Without keys a table is still made: an empty one.
  const auto blocks = [&](int64_t work) {
    return dim3(static_cast<unsigned>(std::min<int64_t>(kMaxBlocksATable, NumBlocks(work))),
                static_cast<unsigned>(params.size()));
  };
  EmptyTablesKernel<<<blocks(NumHashSlots(max_capacity)), kBlockThreads, 0, stream>>>(batch);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  return VisitDimension(params[0].dimension, [&](auto dimension) {
    if (grid != nullptr) {
      SampleBoundsKernel<dimension()><<<NumBoundsBlocks(grid->capacity), kBlockThreads, 0, stream>>>(
          grid->keys, grid->capacity, grid->num_keys, grid_memory.bounds);
      VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
      GridBoxesKernel<<<1, kBoxThreads, 0, stream>>>(grid->dimension, grid_memory.bounds, grid->num_samples,
                                                     grid->max_grid_cells, grid_memory.boxes, grid_memory.uses_grid);
      VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
    }
    if (max_capacity == 0) return cudaSuccess;
    InsertKeysKernel<dimension()><<<blocks(max_capacity), kBlockThreads, 0, stream>>>(batch);
    return LaunchStatus(stream);
  });
}

}  // namespace

size_t CoordinateTableBytes(const CoordinateTableBuildParams& params) { return Cut(params).bytes; }

cudaError_t BuildCoordinateTables(std::span<const CoordinateTableBuildParams> params, std::span<CoordinateTable> tables,
                                  cudaStream_t stream) {
  const NvtxRange range("BuildCoordinateTables");
  int64_t num_grids = 0;
  for (const CoordinateTableBuildParams& build : params) {
    num_grids += build.search == MapSearch::kGrid ? 1 : 0;
    if (build.dimension != params[0].dimension || num_grids > 1) return cudaErrorInvalidValue;
  }
  for (size_t first = 0; first < params.size(); first += kMaxTablesALaunch) {
    const size_t count = std::min<size_t>(kMaxTablesALaunch, params.size() - first);
    VOXSERVE_RETURN_IF_CUDA(BuildBatch(params.subspan(first, count), tables.subspan(first, count), stream));
  }
  return cudaSuccess;
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
