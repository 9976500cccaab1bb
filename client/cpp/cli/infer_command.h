#pragma once

// The command `infer`: sends scans, shows what came back, writes labels, boxes and pictures.

#include "client/cpp/cli/command.h"

namespace voxserve::client {

Command InferCommand();

}  // namespace voxserve::client
