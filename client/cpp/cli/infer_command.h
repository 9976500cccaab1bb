#pragma once

// The command `infer` sends scans, shows the results, writes labels, boxes and pictures.

#include "client/cpp/cli/command.h"

namespace voxserve::client {

Command InferCommand();

}  // namespace voxserve::client
