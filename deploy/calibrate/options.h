#pragma once

// ParseOptions parses and checks the command line of voxserve-calibrate (calibrate.h).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/offline/scan_program.h"

namespace voxserve::calibrate {

struct Options : offline::ScanOptions {
  std::string output;  // the version folder to write
  std::string scales;  // a JSON file of scales; "": they are found from the scans
  std::string float_nodes = "first,last";
  double agreement = 0.998;     // the share of labels or boxes that must agree with the float version
  int64_t hold_out = 0;         // scans that are only compared; 0: a tenth
  bool measures_layers = true;  // false: only if layers must return to float
  bool may_overwrite = false;
};

// words: the command line without the program's name. Returns INVALID_ARGUMENT, which quotes the wrong word.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& words);

// Returns the text of --help.
std::string HelpText();

}  // namespace voxserve::calibrate
