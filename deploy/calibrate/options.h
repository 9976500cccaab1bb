#pragma once

// ParseOptions parses and checks the command line of voxserve-calibrate (calibrate.h).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/offline/model_argument.h"

namespace voxserve::calibrate {

struct Options {
  offline::ModelArgument model;
  std::string output;              // the version folder to write
  std::vector<std::string> scans;  // files and folders
  std::string fields;              // a field spec (client/cpp/io/field_spec.h); "": by the extension
  std::string scales;              // a JSON file of scales; "": they are found from the scans
  std::string float_nodes = "first,last";
  double agreement = 0.998;     // the share of labels or boxes that must agree with the float version
  int64_t hold_out = 0;         // scans that are only compared; 0: a tenth
  int64_t threads = 0;          // 0: as many as this process may use
  int64_t max_scans = 100;      // limit; more scans are thinned out evenly
  bool measures_layers = true;  // false: only if layers must return to float
  bool may_overwrite = false;
  bool wants_help = false;     // then nothing else is checked
  bool wants_version = false;  // then nothing else is checked
};

// words: the command line without the program's name. Returns INVALID_ARGUMENT, which quotes the wrong word.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& words);

// Returns the text of --help.
std::string HelpText();

}  // namespace voxserve::calibrate
