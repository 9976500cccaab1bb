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

// One table of a launch; blockIdx.y is the table's index.
struct TableBuild {
  const uint64_t* keys;
  int64_t capacity;
  const int64_t* num_keys;
  uint64_t* brick_keys;
  Brick* bricks;
  HashSeed seed;
};

struct TableBatch {
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

__device__ HashSlots SlotsOf(const TableBuild& table) {
  return HashSlots(kBrickSlotsAKey * NumRows(table.capacity, table.num_keys), table.seed);
}

// Empties as many slots as the table's keys will use.
__global__ void __launch_bounds__(kBlockThreads) EmptyBricksKernel(const __grid_constant__ TableBatch batch) {
  WaitForEarlierKernels();
  const TableBuild& table = batch.tables[blockIdx.y];
  static_assert(kMinHashSlots % 2 == 0);
  const int64_t num_pairs = SlotsOf(table).size() / 2;
  auto* const pairs = reinterpret_cast<ulonglong2*>(table.brick_keys);
  for (int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < num_pairs;
       i += int64_t{gridDim.x} * kBlockThreads) {
    pairs[i] = {kNoKey, kNoKey};
  }
}

// Inserts the bricks. The thread of a brick's first row computes the brick's mask and inserts the brick.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads) InsertBricksKernel(const __grid_constant__ TableBatch batch) {
  WaitForEarlierKernels();
  using Places = BrickPlaces<kDimension>;
  const TableBuild& table = batch.tables[blockIdx.y];
  const HashSlots slots = SlotsOf(table);
  const int64_t num_rows = NumRows(table.capacity, table.num_keys);
  for (int64_t row = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; row < num_rows;
       row += int64_t{gridDim.x} * kBlockThreads) {
    uint64_t key = table.keys[row];
    const uint64_t brick = Places::BrickOf(key);
    if (row > 0 && Places::BrickOf(table.keys[row - 1]) == brick) continue;
    uint64_t mask = 0;
    for (int64_t next = row; Places::BrickOf(key) == brick;) {
      mask |= uint64_t{1} << Places::PlaceOf(key);
      if (++next == num_rows) break;
      key = table.keys[next];
    }
    const uint32_t slot = slots.Take(brick, kNoKey, table.brick_keys);
    table.bricks[slot] = {.mask = mask, .first_row = static_cast<int32_t>(row), .unused = 0};
  }
}

cudaError_t BuildBatch(std::span<const BrickTableParams> params, std::span<BrickTable> tables, cudaStream_t stream) {
  TableBatch batch{};
  int64_t max_capacity = 0;
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
    max_capacity = std::max(max_capacity, build.capacity);
  }
  const auto blocks = [&](int64_t work) {
    return dim3(static_cast<unsigned>(std::min<int64_t>(kMaxBlocksATable, NumBlocks(work))),
                static_cast<unsigned>(params.size()));
  };
  // A table without keys still needs its slots emptied.
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(EmptyBricksKernel, blocks(NumHashSlots(kBrickSlotsAKey * max_capacity) / 2),
                                      kBlockThreads, 0, stream, batch));
  if (max_capacity == 0) return cudaSuccess;
  return VisitDimension(params[0].dimension, [&](auto dimension) {
    return LaunchEarly(InsertBricksKernel<dimension()>, blocks(max_capacity), kBlockThreads, 0, stream, batch);
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
