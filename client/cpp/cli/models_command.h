#pragma once

// The command `models`: lists what the server serves.

#include "client/cpp/cli/command.h"

namespace voxserve::client {

Command ModelsCommand();

}  // namespace voxserve::client
