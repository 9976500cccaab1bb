#pragma once

// The commands `load` and `unload` bring versions of a model into service and take them out of service.

#include "client/cpp/cli/command.h"

namespace voxserve::client {

Command LoadCommand();
Command UnloadCommand();

}  // namespace voxserve::client
