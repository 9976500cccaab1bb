#pragma once

// Makes detectors for operator_networks.h: one decodes boxes from sites, the other has pillars.

#include "tests/support/model_folder.h"

namespace voxserve {

// Returns a small VoxelNeXt.
testing::TestModel SiteDetector();

// Returns CenterPoint on pillars, with two layers on points, and slots that may be empty.
testing::TestModel PillarDetector();

}  // namespace voxserve
