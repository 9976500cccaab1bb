#pragma once

// Parses and checks the command line of voxserve-tune.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace voxserve::tune {

struct Options {
  std::string model_folder;        // a model's folder, which has version folders
  int64_t version = 0;             // 0: the newest
  std::vector<std::string> scans;  // files and folders
  std::string fields;              // a field spec; "" for the extensions' layouts
  std::string devices;             // as voxserve --devices; the search uses the first
  std::string plan_dir;            // "": the version's own plans/ folder
  int64_t threads = 0;             // 0: as many as this process may use
  int64_t max_scans = 100;         // most scans to use, chosen evenly
  int64_t repeats = 5;             // repeats of each measurement
  absl::Duration time_limit = absl::Minutes(10);
  bool may_be_nondeterministic = false;
  bool is_dry_run = false;
  bool wants_help = false;     // then nothing else is checked
  bool wants_version = false;  // then nothing else is checked
};

// words: without the program's name. INVALID_ARGUMENT quotes the wrong word.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& words);

// Returns the text of --help.
std::string HelpText();

}  // namespace voxserve::tune
