#pragma once

// A convolution's weight from the order of its file into that of its geometry.
//
// Groups become blocks on the diagonal of a dense weight, all else 0, so that every dataflow runs them as they are.
// Against products of the groups alone that multiplies as many zeros as there are groups, in a product that is small
// beside the movement of its rows for the channel counts that depthwise networks have (up to a few hundred); it is
// exact, as a zero adds nothing.

#include <cstdint>
#include <vector>

#include "engine/model/graph.h"

namespace voxserve {

// Values that a weight may take once its groups are spread: 1 GiB of float32.
inline constexpr int64_t kMaxSpreadWeights = int64_t{1} << 28;

// weight: [K, in channels / groups, out channels], finite; -> [K, in channels, out channels]. Cell k is the file's
// stored_cells[k]; empty: k. The tensor itself where nothing changes.
HostTensorPtr ArrangeWeight(HostTensorPtr weight, const std::vector<int32_t>& stored_cells, int groups);

}  // namespace voxserve
