#pragma once

// Networks that others publish numbers for, with random weights: the ground for benchmarks, where only shapes matter.
// They go through the loader like a user's model folder.
//
// Weights are He-initialised for the neighbours that LiDAR scans have and norms have random statistics, so that
// activations keep their size from the first layer to the last (of MinkUNet at width 1 on semantickitti-00/000000: root
// mean square 0.2 to 0.5, at most 20): nothing overflows in float16. The same options give the same bytes.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/graph.h"
#include "tests/support/model_folder.h"

namespace voxserve::support {

struct NetworkOptions {
  double width = 1.0;  // factor on the channels ("cr"): int(width * channels)
  int num_classes = 19;
  std::vector<std::string> features = {"x", "y", "z",
                                       "intensity"};  // the cloud's fields; x, y, z in m, others near 0..1
  float voxel_size_m = 0.05f;
  uint32_t seed = 1;
};

// MinkUNet (spvnas; TorchSparse's SparseResUNet42 and a linear classifier): 42 spatial convolutions, and 1 x 1 x 1
// shortcuts where a residual block changes the channels (7 at width 1). Nodes are named as in deploy/models/minkunet.
testing::TestModel MinkUNet(const NetworkOptions& options);

// TorchSparse's SparseResNet21D with EXPAND's strides (kernel 3, stride 2), as in the MLSys paper. A backbone has no
// labels and a graph needs some: inverse convolutions of 8 channels carry its result back to the voxels. They walk the
// strided rulebooks, so that maps are the backbone's alone.
testing::TestModel SparseResNet21D(const NetworkOptions& options);

// Through a folder that is gone afterwards.
absl::StatusOr<Graph> LoadNetwork(const testing::TestModel& model);

}  // namespace voxserve::support
