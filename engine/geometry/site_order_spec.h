#pragma once

// SiteOrderSpec says from which order of a level's sites a network's groups are cut
// (kernels/coordinates/curves/site_order.h). Groups with equal specs share the order, whatever their size and tail are;
// groups that are spread over windows share it if their size is the same too.

#include <cstdint>
#include <optional>

#include "kernels/coordinates/curves/site_windows.h"
#include "kernels/coordinates/curves/space_filling_curve.h"
#include "kernels/coordinates/curves/spread_group.h"

namespace voxserve {

struct SiteOrderSpec {
  int level = 0;
  kernels::Curve curve = kernels::Curve::kZ;
  // For a Hilbert curve: the level whose largest coordinate decides each sample's depth, and by how many bits an axis
  // the curve has less than that. Else -1 and 0.
  int depth_level = -1;
  int halvings = 0;
  std::optional<kernels::SiteWindows> windows = std::nullopt;  // set: the order is theirs, and `curve` is kZ
  int32_t spread_size = 0;                                     // the size of groups that are spread over windows, or 0

  bool operator==(const SiteOrderSpec&) const = default;
};

// The groups that are spread over the windows of an order, in the memory of a device. Null without such groups.
struct SpreadGroups {
  const kernels::SpreadGroup* groups = nullptr;
  const int32_t* count = nullptr;  // [1]
  int64_t max_count = 0;
};

}  // namespace voxserve
