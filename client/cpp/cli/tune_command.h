#pragma once

// The command `tune` makes the server search for a faster plan (how each convolution is computed) on the scans of its
// requests, and shows the progress.

#include "client/cpp/cli/command.h"

namespace voxserve::client {

Command TuneCommand();

}  // namespace voxserve::client
