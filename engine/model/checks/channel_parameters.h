#pragma once

// These functions read the channels of convolutions and linear layers from model.textproto. They report problems of the
// node at `at`.

#include <cstdint>

#include "engine/model/problems.h"

namespace voxserve {

// Returns the number of channels. Returns 0 and reports a problem if it is not in 1..kMaxChannels.
int ReadOutChannels(uint32_t out_channels, const ProblemsAt& at);

// Returns the number of groups; the default is 1. Returns 0 and reports a problem if it does not divide the channels.
// Returns 0 without a problem if there are several groups and the channels are not known (0).
int ReadGroups(uint32_t groups, int in_channels, int out_channels, const ProblemsAt& at);

}  // namespace voxserve
