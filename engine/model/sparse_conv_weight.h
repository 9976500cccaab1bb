#pragma once

// ArrangeWeight brings a convolution's weight from the order of its file into the order of its geometry's cells.
//
// Groups become blocks on the diagonal of a dense weight, and all other values are 0. So every dataflow runs groups
// without code for them. The cost is num_groups times the arithmetic. For the channels of depthwise networks (up to a
// few hundred) that arithmetic is small compared to the movement of rows. The result is exact, as a zero adds nothing.

#include <cstdint>
#include <vector>

#include "engine/model/graph.h"

namespace voxserve {

// The most values that a weight may have after its groups became a dense weight: 1 GiB of float32.
inline constexpr int64_t kMaxSpreadWeights = int64_t{1} << 28;

// weight: [K, in channels / groups, out channels], with finite values. Returns [K, in channels, out channels], or
// `weight` itself where nothing changes. Cell k of the result is cell stored_cells[k] of `weight`; if stored_cells is
// empty, cells keep their order. If `weight` has only a shape, so has the result.
HostTensorPtr ArrangeWeight(HostTensorPtr weight, const std::vector<int32_t>& stored_cells, int groups);

}  // namespace voxserve
