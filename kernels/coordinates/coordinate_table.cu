#include <algorithm>

#include "kernels/coordinates/coordinate_table.cuh"
#include "kernels/coordinates/coordinate_table.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int64_t kMaxBlocks = 2048;  // blocks stride over the remaining work

struct TableBuild {
  const uint64_t* keys;
  int64_t capacity;
  const int64_t* num_keys;
  HashSlot* slots;
  HashSeed seed;

  __device__ int64_t num_rows() const { return NumRows(capacity, num_keys); }
};

// Empties as many slots as the table's keys will use.
__global__ void __launch_bounds__(kBlockThreads) EmptySlotsKernel(const TableBuild table) {
  static_assert(sizeof(HashSlot) == sizeof(uint4));
  const int64_t num_slots = HashSlots(kSlotsAKey * table.num_rows(), table.seed).size();
  auto* const slots = reinterpret_cast<uint4*>(table.slots);
  for (int64_t i = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; i < num_slots;
       i += int64_t{gridDim.x} * kBlockThreads) {
    slots[i] = {~0u, ~0u, ~0u, ~0u};
  }
}

__global__ void __launch_bounds__(kBlockThreads) InsertKeysKernel(const TableBuild table) {
  constexpr int64_t kStride = sizeof(HashSlot) / sizeof(uint64_t);
  const int64_t num_rows = table.num_rows();
  const HashSlots slots(kSlotsAKey * num_rows, table.seed);
  for (int64_t row = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x; row < num_rows;
       row += int64_t{gridDim.x} * kBlockThreads) {
    const uint32_t slot = slots.Take(table.keys[row], kNoKey, &table.slots->key, kStride);
    table.slots[slot].row = static_cast<int32_t>(row);
  }
}

}  // namespace

size_t CoordinateTableBytes(const CoordinateTableBuildParams& params) {
  return static_cast<size_t>(NumHashSlots(kSlotsAKey * params.capacity)) * sizeof(HashSlot);
}

cudaError_t BuildCoordinateTable(const CoordinateTableBuildParams& params, CoordinateTable* table,
                                 cudaStream_t stream) {
  const NvtxRange range("BuildCoordinateTable");
  const int64_t num_slots = NumHashSlots(kSlotsAKey * params.capacity);
  if (num_slots > kMaxHashSlots) return cudaErrorInvalidValue;
  const TableBuild build{.keys = params.keys,
                         .capacity = params.capacity,
                         .num_keys = params.num_keys,
                         .slots = static_cast<HashSlot*>(params.memory),
                         .seed = params.seed};
  *table = {.capacity = params.capacity, .num_keys = params.num_keys, .slots = build.slots, .seed = params.seed};
  const auto blocks = [](int64_t work) {
    return static_cast<unsigned>(std::min<int64_t>(kMaxBlocks, NumBlocks(work)));
  };
  // A table without keys still needs its slots emptied.
  EmptySlotsKernel<<<blocks(num_slots), kBlockThreads, 0, stream>>>(build);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  if (params.capacity == 0) return cudaSuccess;
  InsertKeysKernel<<<blocks(params.capacity), kBlockThreads, 0, stream>>>(build);
  return LaunchStatus(stream);
}

}  // namespace voxserve::kernels::cuda
