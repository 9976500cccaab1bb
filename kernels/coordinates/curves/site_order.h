#pragma once

// SiteOrders sorts the sites of each sample along a space-filling curve (space_filling_curve.h), or window by window
// (site_windows.h): place p of an order holds the row of the site with the p-th smallest code. An order never leaves
// its sample, so a sample's places are its rows. Codes of different sites differ, so no tie exists, and a sample's
// order does not depend on its batch.
//
// A Hilbert curve has d bits an axis: the bit length of (the largest coordinate of the sample on depth_sites + 1), less
// `halvings`, at least 1 (CurveDepth). So the order of a level whose coordinates are those of depth_sites, halved
// `halvings` times, is the order of depth_sites with repeats of a coarse site removed.
//
// An order of windows can have a list of its windows' groups too (spread_group.h). A GPU makes the list in any order,
// since the number of groups before a window is known to none of its threads.
//
// One call makes several orders, of any levels. On the GPU one sort makes up to kMaxSortParts of them together
// (core/radix_sort.h): a sort of its own for each of the 15 orders of a PTv3 would spend its time in gaps between small
// kernels. Nothing waits for a number of sites, so the work can be captured in a CUDA graph.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
#include <type_traits>

#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/curves/site_windows.h"
#include "kernels/coordinates/curves/space_filling_curve.h"
#include "kernels/coordinates/curves/spread_group.h"
#include "kernels/core/cuda_stream.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

// The sites of a level of 3 axes. No coordinate is below 0.
struct LevelSites {
  // [num_sites] CoordinateKeys on the CPU, MortonKeys on the GPU; the keys of a sample stand together, the samples in
  // ascending order.
  const uint64_t* keys = nullptr;
  int64_t num_sites = 0;  // below 2^31
  // CUDA only: [1] the number of keys, in device memory; num_sites is then the capacity. Null: num_sites keys exist.
  const int64_t* device_num_sites = nullptr;
  // CUDA only: all coordinates of an axis are in [0, extent); 0: not known. A smaller extent makes a quicker sort. If
  // it is wrong, the order is a wrong one, but still one of the sample's rows, and groups are wrong ones of these.
  Axes extent = {0, 0, 0, 0};
};

struct SiteOrder {
  Curve curve = Curve::kZ;
  LevelSites sites;
  LevelSites depth_sites;                             // for a Hilbert curve
  int halvings = 0;                                   // for a Hilbert curve
  std::optional<SiteWindows> windows = std::nullopt;  // set: the order is theirs, and not that of the curve
  int32_t spread_size = 0;                            // K of the windows' groups, at least 1; 0: they have no list
  // Output, if spread_size is set: the groups of all windows, and [1] their number. On the CPU they ascend.
  SpreadGroup* spread_groups = nullptr;  // [sites.num_sites], on a GPU [MaxSpreadGroups]
  int32_t* num_spread_groups = nullptr;  // in device memory if the groups are
};
static_assert(std::is_trivially_copyable_v<SiteOrder>);

// Returns the bits an axis of a sample's Hilbert curve. largest: the largest coordinate of the sample's depth_sites.
constexpr int CurveDepth(uint32_t largest, int halvings) {
  return std::max(static_cast<int>(std::bit_width(largest + 1)) - halvings, 1);
}

// Returns true if the order is that of MortonKeys: rows that ascend by these need no sort.
constexpr bool IsMortonOrder(Curve curve, const std::optional<SiteWindows>& windows) {
  return curve == Curve::kZ && !windows.has_value();
}

// Returns a number that is not less than the number of an order's spread groups.
inline int64_t MaxSpreadGroups(const SiteOrder& order, int32_t num_samples) {
  const Axes& extent = order.sites.extent;
  if (std::min({extent[0], extent[1], extent[2]}) <= 0) return order.sites.num_sites;
  int64_t windows = num_samples;
  for (const int32_t count : NumWindows(*order.windows, extent)) {
    windows = std::min(windows * count, order.sites.num_sites);
  }
  return std::min(windows + order.sites.num_sites / order.spread_size, order.sites.num_sites);
}

namespace cpu {

// row_of_place: output, [sum of all num_sites] the orders one after the other. Temporary arrays are allocated from
// `memory`. Throws std::bad_alloc if it is used up.
void SiteOrders(std::span<const SiteOrder> orders, int32_t num_samples, int32_t* row_of_place, ThreadPool& pool,
                std::pmr::memory_resource* memory = std::pmr::get_default_resource());

}  // namespace cpu

namespace cuda {

// Returns the bytes of the workspace. Above 16 million sites it needs a device (SortPartsScratchBytes). Does not read
// what the orders point to.
size_t SiteOrdersWorkspaceBytes(std::span<const SiteOrder> orders, int32_t num_samples);

// row_of_place: as above, in device memory. Behind an order's last site up to its capacity, the contents are undefined.
// workspace: 256-byte aligned, any contents.
cudaError_t SiteOrders(std::span<const SiteOrder> orders, int32_t num_samples, int32_t* row_of_place, void* workspace,
                       cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
