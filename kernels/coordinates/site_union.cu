#include <cub/device/device_scan.cuh>

#include "kernels/coordinates/site_union.h"
#include "kernels/core/binary_search.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {
namespace {

struct Workspace {
  int32_t* keys_below;  // [num_b] number of keys of A below a key of B
  int32_t* is_new;      // [num_b + 1] 1 if a key of B is not in A
  int32_t* new_before;  // [num_b + 1] for a key of B: the number of earlier keys of B that are not in A
  char* scan_temp = nullptr;
  size_t scan_temp_bytes = 0;
  size_t bytes;

  explicit Workspace(const SiteUnionParams& params) {
    WorkspaceCutter cutter(params.workspace);
    keys_below = cutter.Take<int32_t>(params.num_b);
    is_new = cutter.Take<int32_t>(params.num_b + 1);
    new_before = cutter.Take<int32_t>(params.num_b + 1);
    if (Scan(params, nullptr) != cudaSuccess)
      scan_temp_bytes = 0;  // the same error is reported again when the launcher runs
    scan_temp = cutter.Take<char>(static_cast<int64_t>(scan_temp_bytes));
    bytes = cutter.bytes();
  }

  // With a null scan_temp, only computes the bytes that it needs.
  cudaError_t Scan(const SiteUnionParams& params, cudaStream_t stream) {
    return cub::DeviceScan::ExclusiveSum(scan_temp, scan_temp_bytes, is_new, new_before, params.num_b + 1, stream);
  }
};

// Returns how many of `keys` are below `key`.
__device__ int64_t NumBelow(const uint64_t* keys, int64_t num_keys, uint64_t key) {
  return PartitionPoint(num_keys, [&](int64_t row) { return keys[row] < key; });
}

// Handles one key of B per thread. One more thread sets the last entry of is_new to 0.
__global__ void __launch_bounds__(kBlockThreads)
    FindNewKeysKernel(const SiteUnionParams params, int32_t* keys_below, int32_t* is_new) {
  const int64_t row = blockIdx.x * int64_t{kBlockThreads} + threadIdx.x;
  if (row > params.num_b) return;
  bool is_new_key = false;
  if (row < NumRows(params.num_b, params.device_num_b)) {
    const int64_t num_a = NumRows(params.num_a, params.device_num_a);
    const uint64_t key = params.b_keys[row];
    const int64_t below = NumBelow(params.a_keys, num_a, key);
    keys_below[row] = static_cast<int32_t>(below);
    is_new_key = below == num_a || params.a_keys[below] != key;
  }
  is_new[row] = is_new_key ? 1 : 0;
}

// Handles one key of A per thread, then one key of B per thread.
__global__ void __launch_bounds__(kBlockThreads)
    PlaceKeysKernel(const SiteUnionParams params, const int32_t* keys_below, const int32_t* new_before) {
  const int64_t index = blockIdx.x * int64_t{kBlockThreads} + threadIdx.x;
  const int64_t num_a = NumRows(params.num_a, params.device_num_a);
  const int64_t num_b = NumRows(params.num_b, params.device_num_b);
  if (index == 0) *params.num_out = num_a + new_before[num_b];
  if (index < params.num_a) {
    if (index >= num_a) return;
    const uint64_t key = params.a_keys[index];
    params.out_keys[index + new_before[NumBelow(params.b_keys, num_b, key)]] = key;
    return;
  }
  const int64_t row = index - params.num_a;
  if (row >= num_b || new_before[row + 1] == new_before[row]) return;
  params.out_keys[keys_below[row] + new_before[row]] = params.b_keys[row];
}

}  // namespace

size_t SiteUnionWorkspaceBytes(const SiteUnionParams& params) { return Workspace(params).bytes; }

cudaError_t SiteUnion(const SiteUnionParams& params, cudaStream_t stream) {
  const NvtxRange range("SiteUnion");
  Workspace workspace(params);
  FindNewKeysKernel<<<NumBlocks(params.num_b + 1), kBlockThreads, 0, stream>>>(params, workspace.keys_below,
                                                                               workspace.is_new);
  VOXSERVE_RETURN_IF_CUDA(LaunchStatus(stream));
  VOXSERVE_RETURN_IF_CUDA(workspace.Scan(params, stream));
  PlaceKeysKernel<<<NumBlocks(params.num_a + params.num_b), kBlockThreads, 0, stream>>>(params, workspace.keys_below,
                                                                                        workspace.new_before);
  return LaunchStatus(stream);
}

}  // namespace voxserve::kernels::cuda
