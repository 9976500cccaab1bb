#pragma once

// SiteOrderSpec says from which order of a level's sites a network's groups are cut
// (kernels/coordinates/curves/site_order.h). Groups with equal specs share the order, whatever their size and tail are.

#include "kernels/coordinates/curves/space_filling_curve.h"

namespace voxserve {

struct SiteOrderSpec {
  int level = 0;
  kernels::Curve curve = kernels::Curve::kZ;
  // For a Hilbert curve: the level whose largest coordinate decides each sample's depth, and by how many bits an axis
  // the curve has less than that. Else -1 and 0.
  int depth_level = -1;
  int halvings = 0;

  bool operator==(const SiteOrderSpec&) const = default;
};

}  // namespace voxserve
