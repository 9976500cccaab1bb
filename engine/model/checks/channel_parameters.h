#pragma once

// These functions read the channels of convolutions and linear layers from model.textproto. `at` reports for the node.

#include <cstdint>

#include "engine/model/problems.h"

namespace voxserve {

// Returns the number of channels; 0, and a problem, where it is not in 1..kMaxChannels.
int ReadOutChannels(uint32_t out_channels, const ProblemsAt& at);

// Returns the number of groups; the default is 1. Returns 0 where it does not divide the channels, and reports a
// problem unless the channels are not known (0).
int ReadGroups(uint32_t groups, int in_channels, int out_channels, const ProblemsAt& at);

}  // namespace voxserve
