#pragma once

// The command `models` lists the models of the server.

#include "client/cpp/cli/command.h"

namespace voxserve::client {

Command ModelsCommand();

}  // namespace voxserve::client
