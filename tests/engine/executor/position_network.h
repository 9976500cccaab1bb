#pragma once

// Makes a small network as a model file that attends with queries and keys rotated by positions: of voxels, of coarser
// sites by a pool, and by coordinates.

#include "tests/support/model_folder.h"

namespace voxserve {

// The clouds are those of OperatorNetworks. Beside labels and scores the network has the tensors "fine" and "coarse" of
// positions.
support::TestModel PositionNetwork();

}  // namespace voxserve
