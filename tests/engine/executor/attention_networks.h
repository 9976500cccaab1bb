#pragma once

// Makes small networks with attention as model files with random weights, for operator_networks.h.

#include "tests/support/model_folder.h"

namespace voxserve {

// Returns a network with attention among a sample's sites, and between the sites and learned rows (sample_rows).
support::TestModel AttentionNetwork();

// Returns a network with attention within groups of sites, along every curve and on two levels.
support::TestModel GroupsNetwork();

}  // namespace voxserve
