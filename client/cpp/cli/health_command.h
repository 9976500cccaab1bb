#pragma once

// The command `health`: asks whether the server serves, and may wait until it does.

#include "client/cpp/cli/command.h"

namespace voxserve::client {

Command HealthCommand();

}  // namespace voxserve::client
