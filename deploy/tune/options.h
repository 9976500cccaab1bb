#pragma once

// ParseOptions parses and checks the command line of voxserve-tune (tune.h).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "deploy/offline/scan_program.h"

namespace voxserve::tune {

struct Options : offline::ScanOptions {
  std::string devices;   // like the server's --devices; the search uses the first device
  std::string plan_dir;  // the folder for the plan; "": the version's own plans/ folder
  int64_t repeats = 5;   // repeats of each measurement
  absl::Duration time_limit = absl::Minutes(10);
  bool may_be_nondeterministic = false;
  bool is_dry_run = false;
};

// words: the command line without the program's name. Returns INVALID_ARGUMENT, which quotes the wrong word.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& words);

// Returns the text of --help.
std::string HelpText();

}  // namespace voxserve::tune
