#pragma once

// The command `health` asks whether the server is ready, and can wait until it is.

#include "client/cpp/cli/command.h"

namespace voxserve::client {

Command HealthCommand();

}  // namespace voxserve::client
