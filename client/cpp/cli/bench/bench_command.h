#pragma once

// The command `bench` sends scans for a while and reports latencies and throughput (bench_run.h).

#include "client/cpp/cli/command.h"

namespace voxserve::client {

Command BenchCommand();

}  // namespace voxserve::client
