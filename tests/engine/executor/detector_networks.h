#pragma once

// Makes small detectors (networks that find boxes) as model files with random weights, for operator_networks.h.

#include "tests/support/model_folder.h"

namespace voxserve {

// Returns a network like VoxelNeXt, which decodes boxes from the rows of sites, without a dense image.
support::TestModel SiteDetector();

// Returns a network like CenterPoint on pillars (voxels as high as the scene). It has two layers on the points of a
// pillar. A pillar has three slots for points; an empty slot counts as a point in the first pooling.
support::TestModel PillarDetector();

// Returns a network like TransFusion: queries are selected from an image, attend to each other and to the image, and
// become boxes. A second head decodes the features at other queries as they are.
support::TestModel QueryDetector();

}  // namespace voxserve
