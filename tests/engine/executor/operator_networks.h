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

// Returns a network with operators that compute each row alone, on points, sites and samples, and every activation. The
// interpreter of graph_interpreter.h can compute it.
support::TestModel RowNetwork();

// Returns all networks. Their clouds must have the fields x, y, z and f, with positions between 0 and (6, 5, 4) metres
// and f between -1 and 1.
std::vector<OperatorNetwork> OperatorNetworks();

}  // namespace voxserve
