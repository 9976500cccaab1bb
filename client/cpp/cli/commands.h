#pragma once

// The commands of voxserve-client. Each has a source file of its own; AllCommands lists them for main and the help
// page.

#include <vector>

#include "client/cpp/cli/command.h"

namespace voxserve::client {

Command InferCommand();   // sends scans, shows the results, writes labels, boxes and pictures
Command ModelsCommand();  // lists the models of the server
Command HealthCommand();  // asks whether the server is ready, and can wait until it is
Command LoadCommand();    // brings versions of a model into service
Command UnloadCommand();  // takes versions of a model out of service
// Makes the server search for a faster plan (how each convolution is computed) on the scans of its requests, and shows
// the progress.
Command TuneCommand();
Command BenchCommand();  // sends scans for a while, and reports latencies and throughput (bench/bench_run.h)

// Returns every command, in the order of the help page.
std::vector<Command> AllCommands();

}  // namespace voxserve::client
