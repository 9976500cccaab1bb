#pragma once

// Builds two networks for which other projects have published times. The weights are random, because the benchmarks
// measure times, which depend on shapes only. The engine's loader reads the networks like a user's model folder.
//
// Weights use He initialisation for the number of neighbours in LiDAR scans, and norms have random statistics.
// Activations therefore keep their size from the first layer to the last, and none overflows in float16. (MinkUNet at
// width 1 on semantickitti-00/000000 has a root mean square of 0.2 to 0.5, and no value above 20.) Equal options give
// equal bytes.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/graph.h"
#include "tests/support/model_folder.h"

namespace voxserve::support {

struct NetworkOptions {
  double width = 1.0;  // each layer has int(width * channels) channels; papers write 1.0x or "cr"
  int num_classes = 19;
  std::vector<std::string> features = {"x", "y", "z",
                                       "intensity"};  // the cloud's fields; x, y, z in m, others near 0..1
  float voxel_size_m = 0.05f;
  uint32_t seed = 1;
};

// Returns MinkUNet as spvnas (https://github.com/mit-han-lab/spvnas) defines it: TorchSparse's SparseResUNet42 with a
// linear classifier. It has 42 convolutions over neighbours, and a 1 x 1 x 1 shortcut in each residual block that
// changes the number of channels (7 at width 1). Nodes have the names that deploy/models/minkunet uses.
support::TestModel MinkUNet(const NetworkOptions& options);

// Returns TorchSparse's SparseResNet21D, the backbone of its MLSys paper, with strided convolutions of kernel 3 and
// stride 2 under RULE_EXPAND. The backbone computes no labels, but a model must have some. Inverse convolutions with 8
// channels therefore bring the backbone's result back to the voxels. They reuse the rulebooks (kernel maps) of the
// strided convolutions, so the network has no more rulebooks than the backbone.
support::TestModel SparseResNet21D(const NetworkOptions& options);

// Writes the model to a temporary folder and loads it from there.
absl::StatusOr<Graph> LoadNetwork(const support::TestModel& model);

}  // namespace voxserve::support
