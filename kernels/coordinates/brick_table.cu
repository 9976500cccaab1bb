#include <algorithm>

#include "kernels/coordinates/brick_table.cuh"
#include "kernels/coordinates/brick_table.h"
#include "kernels/coordinates/morton_key.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/visit_dimension.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int kMaxTablesALaunch = 32;  // they are passed as kernel parameters
constexpr int64_t kMaxBlocksATable = 512;
constexpr int64_t kSlotsAThread = 8;  // that EmptyBricksKernel empties, but more of a table of over a million slots

// One table of a launch.
struct TableBuild {
  const uint64_t* keys;
  int64_t capacity;
  const int64_t* num_keys;
  uint64_t* brick_keys;
  Brick* bricks;
  HashSeed seed;
};

struct TableBatch {
  int32_t first_block[kMaxTablesALaunch + 1];  // each table's first block; after the last table: the number of blocks
  TableBuild tables[kMaxTablesALaunch];
};
static_assert(sizeof(TableBatch) <= kMaxParamBytes);

TableBuild Cut(const BrickTableParams& params, size_t* bytes) {
  WorkspaceCutter cutter(params.memory);
  const int64_t num_slots = NumHashSlots(kBrickSlotsAKey * params.capacity);
  TableBuild build{.keys = params.keys, .capacity = params.capacity, .num_keys = params.num_keys, .seed = params.seed};
  build.brick_keys = cutter.Take<uint64_t>(num_slots);
  build.bricks = cutter.Take<Brick>(num_slots);
  *bytes = cutter.bytes();
  return build;
}

// Returns the index of the calling block's table. Sets begin to the block's first thread among all of the table's, and
// stride to the number of these threads.
__device__ int TableOfBlock(const TableBatch& batch, int64_t& begin, int64_t& stride) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  int table = 0;
  while (batch.first_block[table + 1] <= block) ++table;
  begin = int64_t{block - batch.first_block[table]} * kBlockThreads;
  stride = int64_t{batch.first_block[table + 1] - batch.first_block[table]} * kBlockThreads;
  return table;
}

__device__ HashSlots SlotsOf(const TableBuild& table) {
  return HashSlots(kBrickSlotsAKey * NumRows(table.capacity, table.num_keys), table.seed);
}

// Empties as many slots as the table's keys will use.
__global__ void __launch_bounds__(kBlockThreads) EmptyBricksKernel(const __grid_constant__ TableBatch batch) {
  int64_t begin, stride;
  const TableBuild& table = batch.tables[TableOfBlock(batch, begin, stride)];
  WaitForEarlierKernels();
  static_assert(kMinHashSlots % 2 == 0);
  const int64_t num_pairs = SlotsOf(table).size() / 2;
  auto* const pairs = reinterpret_cast<ulonglong2*>(table.brick_keys);
  for (int64_t i = begin + threadIdx.x; i < num_pairs; i += stride) pairs[i] = {kNoKey, kNoKey};
}

// Returns the places of the rows from `row` on that are in a brick. A lane begins with a row of its own, of this key;
// the warp's rows are consecutive.
template <int kDimension>
__device__ uint64_t PlacesFrom(const TableBuild& table, int64_t num_rows, int64_t row, uint64_t key, uint64_t brick) {
  using Places = BrickPlaces<kDimension>;
  uint64_t mask = 0;
  uint32_t in_brick = 0;
  do {
    const bool is_in = row < num_rows && Places::BrickOf(key) == brick;
    const uint64_t place = is_in ? uint64_t{1} << Places::PlaceOf(key) : 0;
    in_brick = __ballot_sync(~0u, is_in);
    mask |= uint64_t{WarpOr(static_cast<uint32_t>(place >> 32))} << 32 | WarpOr(static_cast<uint32_t>(place));
    row += kWarpThreads;
    if (in_brick == ~0u && row < num_rows) key = table.keys[row];
  } while (in_brick == ~0u);
  return mask;
}

// Inserts the bricks. The lanes of a brick's rows compute the brick's mask, and the first row's lane inserts the brick.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads) InsertBricksKernel(const __grid_constant__ TableBatch batch) {
  using Places = BrickPlaces<kDimension>;
  int64_t begin, stride;
  const TableBuild& table = batch.tables[TableOfBlock(batch, begin, stride)];
  const HashSlots slots = SlotsOf(table);
  const int64_t num_rows = NumRows(table.capacity, table.num_keys);
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  for (int64_t row = begin + threadIdx.x; row - lane < num_rows; row += stride) {
    const bool is_row = row < num_rows;
    const int64_t next = row + kWarpThreads;
    const uint64_t key = is_row ? table.keys[row] : kNoKey, next_key = next < num_rows ? table.keys[next] : kNoKey;
    const uint64_t brick = Places::BrickOf(key);
    uint64_t before = __shfl_up_sync(~0u, brick, 1);
    if (lane == 0 && row > 0) before = Places::BrickOf(table.keys[row - 1]);
    const bool is_first = is_row && (row == 0 || brick != before);
    const uint32_t firsts = __ballot_sync(~0u, is_first), later = firsts & ~((2u << lane) - 1);
    const int end = later == 0 ? kWarpThreads : __ffs(static_cast<int>(later)) - 1;
    uint64_t mask = OrToEnd(is_row ? uint64_t{1} << Places::PlaceOf(key) : 0, lane, end);
    // The last lane's brick may have more rows after those of the warp.
    const uint64_t last = __shfl_sync(~0u, brick, kWarpThreads - 1);
    const uint64_t behind = PlacesFrom<kDimension>(table, num_rows, next, next_key, last);
    if (later == 0) mask |= behind;
    WaitForEarlierKernels();  // for EmptyBricksKernel; the keys are older
    if (is_first) {
      const uint32_t slot = slots.Take(brick, kNoKey, table.brick_keys);
      table.bricks[slot] = {.mask = mask, .first_row = static_cast<int32_t>(row), .unused = 0};
    }
  }
  WaitForEarlierKernels();  // in blocks without rows
}

cudaError_t BuildBatch(std::span<const BrickTableParams> params, std::span<BrickTable> tables, cudaStream_t stream) {
  TableBatch batch{};
  for (size_t i = 0; i < params.size(); ++i) {
    if (NumHashSlots(kBrickSlotsAKey * params[i].capacity) > kMaxHashSlots) return cudaErrorInvalidValue;
    size_t bytes = 0;
    const TableBuild build = batch.tables[i] = Cut(params[i], &bytes);
    tables[i] = {.dimension = params[i].dimension,
                 .capacity = build.capacity,
                 .num_keys = build.num_keys,
                 .brick_keys = build.brick_keys,
                 .bricks = build.bricks,
                 .seed = build.seed};
  }
  // Gives every table a thread for each unit of work(capacity), up to kMaxBlocksATable. Returns the number of blocks.
  const auto share_blocks = [&](const auto& work) {
    for (size_t i = 0; i < params.size(); ++i) {
      const int64_t num_blocks = std::min<int64_t>(kMaxBlocksATable, NumBlocks(work(params[i].capacity)));
      batch.first_block[i + 1] = batch.first_block[i] + static_cast<int32_t>(num_blocks);
    }
    return static_cast<unsigned>(batch.first_block[params.size()]);
  };
  // A table without keys still needs its slots emptied.
  const unsigned empty_blocks =
      share_blocks([](int64_t capacity) { return NumHashSlots(kBrickSlotsAKey * capacity) / kSlotsAThread; });
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(EmptyBricksKernel, empty_blocks, kBlockThreads, 0, stream, batch));
  const unsigned insert_blocks = share_blocks([](int64_t capacity) { return capacity; });
  return VisitDimension(params[0].dimension, [&](auto dimension) {
    return LaunchEarly(InsertBricksKernel<dimension()>, insert_blocks, kBlockThreads, 0, stream, batch);
  });
}

}  // namespace

size_t BrickTableBytes(const BrickTableParams& params) {
  BrickTableParams measured = params;
  measured.memory = nullptr;
  size_t bytes = 0;
  Cut(measured, &bytes);
  return bytes;
}

cudaError_t BuildBrickTables(std::span<const BrickTableParams> params, std::span<BrickTable> tables,
                             cudaStream_t stream) {
  const NvtxRange range("BuildBrickTables");
  for (const BrickTableParams& build : params) {
    if (build.dimension != params[0].dimension) return cudaErrorInvalidValue;
  }
  for (size_t first = 0; first < params.size(); first += kMaxTablesALaunch) {
    const size_t count = std::min<size_t>(kMaxTablesALaunch, params.size() - first);
    VOXSERVE_RETURN_IF_CUDA(BuildBatch(params.subspan(first, count), tables.subspan(first, count), stream));
  }
  return cudaSuccess;
}

}  // namespace voxserve::kernels::cuda
