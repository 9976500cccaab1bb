#pragma once

// Makes small networks as model files with random weights. Together they use every operator of the file format.

#include <string>
#include <vector>

#include "tests/support/model_folder.h"

namespace voxserve {

struct OperatorNetwork {
  std::string name;
  support::TestModel model;
};

// Returns the networks. Their clouds must have the fields x, y, z and f, with positions between 0 and (6, 5, 4) metres
// and f between -1 and 1.
std::vector<OperatorNetwork> OperatorNetworks();

}  // namespace voxserve
