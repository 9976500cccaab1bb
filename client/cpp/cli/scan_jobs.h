#pragma once

// From the command line's files and folders to one job a scan: what to read, where its results go.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace voxserve::client {

struct ScanPaths {
  std::vector<std::string> inputs;  // files and folders (their scans, by name; not those of folders within)
  // Each a file, or a folder (made if need be) that gets one file per scan, named after it; "" for none.
  std::string save;     // of labels .npy or .label, of boxes .json, .csv or .npy; in a folder .npy
  std::string picture;  // .png
  std::string truth;    // read; in a folder: STEM.truth.u8, STEM.u8, STEM.label or STEM.npy
};

struct ScanJob {
  std::string input;
  std::string save, picture, truth;  // files; "" for none
};

// INVALID_ARGUMENT: nothing to do, one output file for many scans, two scans that would write the same file, an
// unknown extension. NOT_FOUND: an input or a truth that is not there.
absl::StatusOr<std::vector<ScanJob>> PlanJobs(const ScanPaths& paths);

}  // namespace voxserve::client
