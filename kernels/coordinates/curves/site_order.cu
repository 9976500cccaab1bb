#include <algorithm>
#include <bit>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/curves/site_order.h"
#include "kernels/coordinates/morton_key.h"
#include "kernels/core/clear.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/radix_sort.h"
#include "kernels/core/row_tiles.cuh"

// The orders of one sort are its parts. Behind the sort, the sites of a window stand together, and each site finds its
// window's ends by binary searches over the sorted keys: that lists the windows' groups without a scan.
//
// The orders of one sort are its parts. A part's keys are (sample, code); rows beyond the number of sites get a sample
// beyond all others, so that they come last.

namespace voxserve::kernels::cuda {
namespace {

using Key = MortonKey<3>;

constexpr int kAxes = 3;
// A coordinate of a key that is not below 0 has one bit less than the field, which also holds its sign.
constexpr int kCoordinateBits = Key::kAxisBits - 1;
constexpr int64_t kLargestBlockSites = 2048;

// Returns the bits of the largest coordinate that the sites may have on any axis.
int AxisBits(const LevelSites& sites) {
  int bits = 0;
  for (int axis = 0; axis < kAxes; ++axis) {
    const int32_t extent = sites.extent[axis];
    bits = std::max(bits, extent <= 0 ? kCoordinateBits : static_cast<int>(std::bit_width(uint32_t(extent) - 1)));
  }
  return std::clamp(bits, 1, kCoordinateBits);
}

// Returns the windows of each axis. No level has coordinates beyond those of a key, whatever its extent says.
Axes WindowsOf(const SiteOrder& order) {
  Axes extent = {1, 1, 1, 1};
  for (int axis = 0; axis < kAxes; ++axis) {
    constexpr int32_t kMost = int32_t{1} << kCoordinateBits;
    extent[axis] = order.sites.extent[axis] <= 0 ? kMost : std::min(order.sites.extent[axis], kMost);
  }
  return NumWindows(*order.windows, extent);
}

// Returns the bits of an order's largest code.
int CodeBits(const SiteOrder& order) {
  if (order.windows) {
    return std::max(static_cast<int>(std::bit_width(NumWindowCodes(*order.windows, WindowsOf(order)) - 1)), 1);
  }
  int axis_bits = AxisBits(order.sites);
  if (IsHilbert(order.curve)) {
    const auto limit = static_cast<uint32_t>(CoordinateKey(kAxes).max_coordinate());
    const uint32_t largest = std::min((uint32_t{1} << AxisBits(order.depth_sites)) - 1, limit);
    axis_bits = std::max(axis_bits, CurveDepth(largest, order.halvings));
  }
  return kAxes * axis_bits;
}

// The levels whose largest coordinates decide the depth of Hilbert curves. blockIdx.y is the level.
struct DepthLevels {
  int32_t num_samples = 0;
  uint32_t* largest = nullptr;  // [levels, num_samples]
  LevelSites sites[kMaxSortParts];
};

struct CodePart {
  LevelSites sites;
  Curve curve;
  int halvings;
  int code_bits;
  const uint32_t* largest;  // [num_samples] of its depth level; null: its curve has no depth
  bool has_windows;         // its codes are those of windows
  SiteWindows windows;
  Axes num_windows;
  int32_t* num_spread_groups;  // [1]; null: it has no list of groups
  uint64_t* keys;              // [sites.num_sites]
  int32_t* rows;               // [sites.num_sites]
};

struct CodeParts {
  int32_t num_samples = 0;
  CodePart parts[kMaxSortParts];
};

// A part whose groups are listed. The fields are those of SiteOrder.
struct SpreadPart {
  const uint64_t* keys;  // [num_sites] sorted
  int64_t num_sites;
  const int64_t* device_num_sites;
  int code_bits;
  uint64_t window_volume;
  int32_t size;
  SpreadGroup* groups;
  int32_t* num_groups;
  int64_t max_groups;
};

struct SpreadParts {
  SpreadPart parts[kMaxSortParts];
};
static_assert(sizeof(CodeParts) <= kMaxParamBytes && sizeof(DepthLevels) <= kMaxParamBytes &&
              sizeof(SpreadParts) <= kMaxParamBytes);

// The orders of one sort, and its memory.
struct Sort {
  // row_of_place: of the first order.
  Sort(std::span<const SiteOrder> orders, int32_t num_samples, int32_t* row_of_place, void* memory)
      : depths{.num_samples = num_samples}, codes{.num_samples = num_samples} {
    const int sample_bits = static_cast<int>(std::bit_width(static_cast<uint32_t>(num_samples)));
    for (const SiteOrder& order : orders) {
      parts.push_back({.num_pairs = order.sites.num_sites, .num_bits = CodeBits(order) + sample_bits});
      num_sites += order.sites.num_sites;
      most_sites = std::max(most_sites, order.sites.num_sites);
    }
    WorkspaceCutter cutter(memory);
    const bool swaps = SortPartsSwapsBuffers<uint64_t>(parts);
    for (uint64_t*& keys : pairs.keys) keys = cutter.Take<uint64_t>(num_sites);
    pairs.values[swaps ? 0 : 1] = cutter.Take<int32_t>(num_sites);
    pairs.values[swaps ? 1 : 0] = row_of_place;
    depths.largest = cutter.Take<uint32_t>(static_cast<int64_t>(kMaxSortParts) * num_samples);
    largest_end = cutter.Take<char>(0);
    scratch = cutter.Take<char>(static_cast<int64_t>(SortPartsScratchBytes<uint64_t>(parts)));
    bytes = cutter.bytes();
  }

  // Fills the kernels' parameters. Call it if the memory is not null.
  void Fill(std::span<const SiteOrder> orders) {
    int64_t begin = 0;
    for (size_t i = 0; i < orders.size(); ++i) {
      const SiteOrder& order = orders[i];
      codes.parts[i] = {.sites = order.sites,
                        .curve = order.curve,
                        .halvings = order.halvings,
                        .code_bits = CodeBits(order),
                        .largest = !order.windows && IsHilbert(order.curve) ? LargestOf(order.depth_sites) : nullptr,
                        .has_windows = order.windows.has_value(),
                        .windows = order.windows.value_or(SiteWindows()),
                        .num_windows = order.windows ? WindowsOf(order) : Axes(),
                        .num_spread_groups = order.spread_size > 0 ? order.num_spread_groups : nullptr,
                        .keys = pairs.keys[0] + begin,
                        .rows = pairs.values[0] + begin};
      begin += order.sites.num_sites;
    }
  }

  const uint32_t* LargestOf(const LevelSites& level) {
    int index = 0;
    while (index < num_depth_levels && depths.sites[index].keys != level.keys) ++index;
    if (index == num_depth_levels) {
      depths.sites[num_depth_levels++] = level;
      most_depth_sites = std::max(most_depth_sites, level.num_sites);
    }
    return depths.largest + int64_t{index} * depths.num_samples;
  }

  std::vector<SortPart> parts;
  int64_t num_sites = 0;   // of all parts together
  int64_t most_sites = 0;  // of a part
  PairBuffers<uint64_t> pairs;
  DepthLevels depths;
  int num_depth_levels = 0;
  int64_t most_depth_sites = 0;
  char* largest_end = nullptr;  // the end of depths.largest
  CodeParts codes;
  char* scratch = nullptr;
  size_t bytes = 0;
};

// Returns how many of the orders, from the first on, one sort makes. There is at least one order.
size_t NumInOneSort(std::span<const SiteOrder> orders) {
  constexpr int64_t kMostPairs = (int64_t{1} << 31) - 1;
  int64_t num_sites = orders[0].sites.num_sites;
  size_t count = 1;
  while (count < std::min(orders.size(), kMaxSortParts)) {
    num_sites += orders[count].sites.num_sites;
    if (num_sites > kMostPairs) break;
    ++count;
  }
  return count;
}

__device__ uint32_t LargestCoordinate(uint64_t key) {
  uint32_t largest = 0;
#pragma unroll
  for (int axis = 0; axis < kAxes; ++axis) largest = max(largest, static_cast<uint32_t>(Key::Coordinate(key, axis)));
  return largest;
}

// Finds the largest coordinate of each sample. A block has kLargestBlockSites sites, nearly always of one sample.
__global__ void __launch_bounds__(kBlockThreads) LargestCoordinatesKernel(const __grid_constant__ DepthLevels levels) {
  WaitForEarlierKernels();
  const LevelSites& sites = levels.sites[blockIdx.y];
  uint32_t* const largest = levels.largest + int64_t{blockIdx.y} * levels.num_samples;
  const int64_t num_sites = NumRows(sites.num_sites, sites.device_num_sites);
  const int64_t begin = int64_t{blockIdx.x} * kLargestBlockSites;
  const int64_t end = begin + kLargestBlockSites < num_sites ? begin + kLargestBlockSites : num_sites;
  if (begin >= end) return;
  const int32_t sample = Key::Sample(sites.keys[begin]);
  if (sample != Key::Sample(sites.keys[end - 1])) {
    for (int64_t row = begin + threadIdx.x; row < end; row += kBlockThreads) {
      atomicMax(&largest[Key::Sample(sites.keys[row])], LargestCoordinate(sites.keys[row]));
    }
    return;
  }
  uint32_t of_thread = 0;
  for (int64_t row = begin + threadIdx.x; row < end; row += kBlockThreads) {
    of_thread = max(of_thread, LargestCoordinate(sites.keys[row]));
  }
  for (int distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    of_thread = max(of_thread, __shfl_xor_sync(~0u, of_thread, distance));
  }
  if (threadIdx.x % kWarpThreads == 0) atomicMax(&largest[sample], of_thread);
}

// Writes the keys to sort, and their rows. blockIdx.y is the part.
__global__ void __launch_bounds__(kBlockThreads) SiteCodesKernel(const __grid_constant__ CodeParts codes) {
  WaitForEarlierKernels();
  const CodePart& part = codes.parts[blockIdx.y];
  const int64_t row = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (row == 0 && part.num_spread_groups != nullptr) *part.num_spread_groups = 0;
  if (row >= part.sites.num_sites) return;
  int32_t sample = codes.num_samples;
  uint64_t code = 0;
  if (row < NumRows(part.sites.num_sites, part.sites.device_num_sites)) {
    const uint64_t key = part.sites.keys[row];
    sample = Key::Sample(key);
    const int depth = part.largest == nullptr ? 1 : max(32 - __clz(part.largest[sample] + 1) - part.halvings, 1);
    code = part.has_windows ? WindowCode(part.windows, part.num_windows, Key::Unpack(key))
                            : CurveCode(part.curve, Key::Unpack(key), depth);
    code &= (uint64_t{1} << part.code_bits) - 1;  // keeps a site in its sample even if the extent was wrong
  }
  part.keys[row] = static_cast<uint64_t>(sample) << part.code_bits | code;
  part.rows[row] = static_cast<int32_t>(row);
}

// Returns the first place in [begin, end) whose key is at least `key`, or `end`.
__device__ int64_t LowerBound(const uint64_t* keys, int64_t begin, int64_t end, uint64_t key) {
  while (begin < end) {
    const int64_t middle = (begin + end) / 2;
    if (keys[middle] < key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// Lists the groups of windows: a thread is for a place, and adds the group whose first own place it is. blockIdx.y is
// the part.
__global__ void __launch_bounds__(kBlockThreads) SpreadGroupsKernel(const __grid_constant__ SpreadParts spread) {
  WaitForEarlierKernels();
  const SpreadPart& part = spread.parts[blockIdx.y];
  const int64_t place = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  const int64_t num_sites = NumRows(part.num_sites, part.device_num_sites);
  if (place >= num_sites) return;
  const uint64_t key = part.keys[place], code = key & ((uint64_t{1} << part.code_bits) - 1);
  const uint64_t window = key - code % part.window_volume;  // the least key of the window
  const int64_t begin = LowerBound(part.keys, 0, place, window);
  const int64_t end = LowerBound(part.keys, place + 1, num_sites, window + part.window_volume);
  const auto of_window = static_cast<int32_t>(end - begin);
  const int32_t j = SpreadGroupOf(of_window, part.size, static_cast<int32_t>(place - begin));
  const SpreadGroup group = SpreadGroupAt(static_cast<int32_t>(begin), of_window, part.size, j);
  if (group.own_begin != place) return;
  const int32_t at = atomicAdd(part.num_groups, 1);
  if (at < part.max_groups) part.groups[at] = group;  // more exist only if the extent was wrong
}

// Lists the groups of those orders that have lists. keys: the sorted keys of all orders, one after the other.
cudaError_t ListSpreadGroups(std::span<const SiteOrder> orders, int32_t num_samples, const uint64_t* keys,
                             cudaStream_t stream) {
  SpreadParts spread;
  unsigned count = 0;
  int64_t most_sites = 0;
  for (const SiteOrder& order : orders) {
    const LevelSites& sites = order.sites;
    if (order.spread_size > 0 && sites.num_sites > 0) {
      most_sites = std::max(most_sites, sites.num_sites);
      spread.parts[count++] = {.keys = keys,
                               .num_sites = sites.num_sites,
                               .device_num_sites = sites.device_num_sites,
                               .code_bits = CodeBits(order),
                               .window_volume = WindowVolume(*order.windows),
                               .size = order.spread_size,
                               .groups = order.spread_groups,
                               .num_groups = order.num_spread_groups,
                               .max_groups = MaxSpreadGroups(order, num_samples)};
    }
    keys += sites.num_sites;
  }
  if (count == 0) return cudaSuccess;
  return LaunchEarly(SpreadGroupsKernel, dim3(NumBlocks(most_sites), count), kBlockThreads, 0, stream, spread);
}

cudaError_t RunSort(std::span<const SiteOrder> orders, int32_t num_samples, int32_t* row_of_place, void* workspace,
                    cudaStream_t stream) {
  Sort sort(orders, num_samples, row_of_place, workspace);
  if (sort.num_sites == 0) {
    for (const SiteOrder& order : orders) {
      if (order.spread_size == 0) continue;
      VOXSERVE_RETURN_IF_CUDA(cudaMemsetAsync(order.num_spread_groups, 0, sizeof(int32_t), stream));
    }
    return cudaSuccess;
  }
  sort.Fill(orders);
  if (sort.num_depth_levels > 0) {
    const auto largest_bytes = static_cast<size_t>(sort.largest_end - reinterpret_cast<char*>(sort.depths.largest));
    VOXSERVE_RETURN_IF_CUDA(Clear(sort.depths.largest, largest_bytes, stream));
    const dim3 blocks(NumBlocks(sort.most_depth_sites, static_cast<int>(kLargestBlockSites)),
                      static_cast<unsigned>(sort.num_depth_levels));
    VOXSERVE_RETURN_IF_CUDA(LaunchEarly(LargestCoordinatesKernel, blocks, kBlockThreads, 0, stream, sort.depths));
  }
  const dim3 blocks(NumBlocks(sort.most_sites), static_cast<unsigned>(orders.size()));
  VOXSERVE_RETURN_IF_CUDA(LaunchEarly(SiteCodesKernel, blocks, kBlockThreads, 0, stream, sort.codes));
  VOXSERVE_RETURN_IF_CUDA(SortParts<uint64_t>(sort.pairs, sort.parts, sort.scratch, stream));
  VOXSERVE_RETURN_IF_CUDA(ListSpreadGroups(orders, num_samples, sort.pairs.current_keys(), stream));
  if (sort.pairs.current_values() == row_of_place) return cudaSuccess;
  return cudaMemcpyAsync(row_of_place, sort.pairs.current_values(),
                         static_cast<size_t>(sort.num_sites) * sizeof(int32_t), cudaMemcpyDeviceToDevice, stream);
}

}  // namespace

size_t SiteOrdersWorkspaceBytes(std::span<const SiteOrder> orders, int32_t num_samples) {
  size_t bytes = 0;
  while (!orders.empty()) {
    const size_t count = NumInOneSort(orders);
    bytes = std::max(bytes, Sort(orders.first(count), num_samples, nullptr, nullptr).bytes);
    orders = orders.subspan(count);
  }
  return bytes;
}

cudaError_t SiteOrders(std::span<const SiteOrder> orders, int32_t num_samples, int32_t* row_of_place, void* workspace,
                       cudaStream_t stream) {
  const NvtxRange range("SiteOrders");
  while (!orders.empty()) {
    const size_t count = NumInOneSort(orders);
    VOXSERVE_RETURN_IF_CUDA(RunSort(orders.first(count), num_samples, row_of_place, workspace, stream));
    for (const SiteOrder& order : orders.first(count)) row_of_place += order.sites.num_sites;
    orders = orders.subspan(count);
  }
  return cudaSuccess;
}

}  // namespace voxserve::kernels::cuda
