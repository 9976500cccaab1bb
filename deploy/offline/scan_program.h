#pragma once

// These functions are what the programs that run a model over scans (voxserve-tune, voxserve-calibrate) do alike with
// their command lines. The flags' texts are those of --help.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/cli/scan_jobs.h"
#include "deploy/offline/model_argument.h"
#include "deploy/offline/process.h"
#include "engine/base/flags.h"

namespace voxserve::offline {

// The options that all these programs have.
struct ScanOptions {
  ModelArgument model;
  std::vector<std::string> scans;  // files and folders
  std::string fields;              // a field spec (client/cpp/io/field_spec.h); "": by the extension
  int64_t threads = 0;             // 0: as many as this process may use
  int64_t max_scans = 100;         // limit; more scans are thinned out evenly
  bool wants_help = false;         // then nothing else is checked
  bool wants_version = false;      // then nothing else is checked
};

Flag ModelFlag(std::string* model);  // its text is for ParseModelArgument
Flag ThreadsFlag(ScanOptions* options);
Flag FieldsFlag(ScanOptions* options);
Flag HelpFlag(ScanOptions* options);
Flag VersionFlag(ScanOptions* options);

// Returns INVALID_ARGUMENT if no scan is given, or if the fields cannot be read.
absl::Status CheckScans(const ScanOptions& options);

// Runs a program whose command line has been parsed, and returns its exit code. parsed: the error of parsing. help:
// returns the text of --help. work: what the program does with the files that its scans name.
int RunOnScans(const std::string& program, const absl::Status& parsed, const ScanOptions& options,
               const std::function<std::string()>& help, const Surroundings& surroundings,
               const std::function<absl::Status(const std::vector<client::ScanJob>& jobs)>& work);

}  // namespace voxserve::offline
