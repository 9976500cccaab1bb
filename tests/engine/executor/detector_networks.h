#pragma once

// Detectors for operator_networks.h: one whose boxes are decoded from sites, and one of pillars.

#include "tests/support/model_folder.h"

namespace voxserve {

// VoxelNeXt in small.
testing::TestModel SiteDetector();

// CenterPoint on pillars, with two layers of points and slots that may be empty.
testing::TestModel PillarDetector();

}  // namespace voxserve
