#pragma once

// The list of voxserve-client's commands.

#include <vector>

#include "client/cpp/cli/command.h"

namespace voxserve::client {

// Returns every command, in the order of the help page.
std::vector<Command> AllCommands();

}  // namespace voxserve::client
