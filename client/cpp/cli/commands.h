#pragma once

// AllCommands lists voxserve-client's commands, for main and the help page.

#include <vector>

#include "client/cpp/cli/command.h"

namespace voxserve::client {

// Returns every command, in the order of the help page.
std::vector<Command> AllCommands();

}  // namespace voxserve::client
