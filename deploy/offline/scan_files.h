#pragma once

// These functions read the scans that a program's command line names, as tasks for the engine.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/cli/scan_jobs.h"
#include "deploy/offline/process.h"
#include "engine/tensor/infer_task.h"

namespace voxserve::offline {

// Returns OK for "" and for a field spec that can be read (client/cpp/io/field_spec.h), else an error about --fields.
absl::Status CheckFields(const std::string& fields);

struct Scans {
  std::vector<std::string> files;
  std::vector<InferTask> tasks;  // one per cloud
};

struct ScanLimits {
  std::string fields;       // a field spec; "": by the extension
  int64_t max_scans = 100;  // of more scans, so many are chosen evenly
  int64_t max_points = 0;   // of a scan: the model's limit
};

// Reads the jobs' files, and shows its progress. A file that cannot be read, or has too many points, is left out: a
// line on Surroundings::err names it, after the program's name. Returns INVALID_ARGUMENT if no scan remains, and
// CANCELLED if the program is to stop.
absl::StatusOr<Scans> ReadScans(const std::string& program, const std::vector<client::ScanJob>& jobs,
                                const ScanLimits& limits, const Surroundings& surroundings);

}  // namespace voxserve::offline
