#pragma once

// Networks that have every operator of the file format between them, as files with random weights.

#include <string>
#include <vector>

#include "tests/support/model_folder.h"

namespace voxserve {

struct OperatorNetwork {
  std::string name;
  testing::TestModel model;
};

// Their clouds have fields x, y, z and f; positions from 0 to (6, 5, 4) metres, and f within 1, are what they are for.
std::vector<OperatorNetwork> OperatorNetworks();

}  // namespace voxserve
