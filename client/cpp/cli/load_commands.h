#pragma once

// The commands `load` and `unload`, which bring versions of a model into service and take them out.

#include "client/cpp/cli/command.h"

namespace voxserve::client {

Command LoadCommand();
Command UnloadCommand();

}  // namespace voxserve::client
