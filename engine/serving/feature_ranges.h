#pragma once

// Finds clouds whose values are in another unit than the network was trained on. Any thread may call the function.

#include <vector>

#include "engine/model/graph.h"
#include "engine/tensor/feature_warning.h"
#include "engine/tensor/point_cloud.h"

namespace voxserve {

// Returns a warning for each feature with a range of which more than 1% of the cloud's values are outside: more than 5%
// of the range's width below `low` or above `high`. Looks at up to 4096 points, in blocks that are spread evenly over
// the cloud. Values that are not finite are not looked at, as no network sees them.
std::vector<FeatureWarning> FindFeatureWarnings(const VoxelizeOp& op, const PointCloud& cloud);

}  // namespace voxserve
