#pragma once

// The command `tune`: searches a plan for a model on the scans that it serves, and shows the progress.

#include "client/cpp/cli/command.h"

namespace voxserve::client {

Command TuneCommand();

}  // namespace voxserve::client
