#pragma once

// Run is the program voxserve-calibrate: it runs a model in float32 over scans, chooses the scales by which values are
// stored in 8 bits, compares the answers of both versions on scans that it did not calibrate on, and writes the 8-bit
// version. For the main thread.

#include <string>
#include <vector>

#include "deploy/offline/process.h"

namespace voxserve::calibrate {

// words: the command line without the program's name. Returns the exit code.
int Run(const std::vector<std::string>& words, const offline::Surroundings& surroundings);

}  // namespace voxserve::calibrate
