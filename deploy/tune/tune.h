#pragma once

// Run is the program voxserve-tune: it reads scans, loads a model, searches for the model's fastest plan (a plan says
// how each convolution is computed) and writes the plan to a file. For the main thread.

#include <string>
#include <vector>

#include "deploy/offline/process.h"

namespace voxserve::tune {

// words: the command line without the program's name. Returns the exit code. Surroundings::version is the engine's
// version for which a plan is written.
int Run(const std::vector<std::string>& words, const offline::Surroundings& surroundings);

}  // namespace voxserve::tune
