#pragma once

// Networks for which others publish numbers, with random weights, for benchmarks in which only shapes matter. They go
// through the loader like a user's model folder.
//
// Weights are He-initialised for the neighbours in LiDAR scans, and norms have random statistics, so activations keep
// their size from the first layer to the last, and nothing overflows in float16. (MinkUNet at width 1 on
// semantickitti-00/000000 has a root mean square of 0.2 to 0.5, and values of at most 20.) Equal options give equal
// bytes.

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

// MinkUNet (spvnas; TorchSparse's SparseResUNet42 with a linear classifier): 42 spatial convolutions, and 1 x 1 x 1
// shortcuts where a residual block changes the channels (7 at width 1). Nodes have the names of deploy/models/minkunet.
testing::TestModel MinkUNet(const NetworkOptions& options);

// TorchSparse's SparseResNet21D with EXPAND's strides (kernel 3, stride 2), as in the MLSys paper. A backbone has no
// labels, but a graph needs some. So inverse convolutions with 8 channels take its result back to the voxels. They use
// the strided rulebooks, so that all maps are the backbone's.
testing::TestModel SparseResNet21D(const NetworkOptions& options);

// Loads the model through a temporary folder.
absl::StatusOr<Graph> LoadNetwork(const testing::TestModel& model);

}  // namespace voxserve::support
