#pragma once

// The channels of convolutions and linear layers, as model.textproto has them. `at` reports for the node.

#include <cstdint>

#include "engine/model/problems.h"

namespace voxserve {

// Returns the number of channels; 0, and a problem, where it is not in 1..kMaxChannels.
int ReadOutChannels(uint32_t out_channels, const ProblemsAt& at);

// Returns the number of groups, 1 where the file says none. Returns 0 where it does not divide the channels, which is a
// problem unless the channels are not known (0).
int ReadGroups(uint32_t groups, int in_channels, int out_channels, const ProblemsAt& at);

}  // namespace voxserve
