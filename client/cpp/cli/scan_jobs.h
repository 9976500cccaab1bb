#pragma once

// Makes one job per scan from the command line's files and folders: the file to read, and the files for its results.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

struct ScanPaths {
  std::vector<std::string>
      inputs;  // files and folders; a folder means its scans in the order of names, without subfolders
  // Each is a file, or a folder (created if needed) that gets one file per scan, named after the scan; "" for none.
  std::string save;     // labels: .npy or .label; boxes: .json, .csv or .npy; in a folder .npy
  std::string picture;  // .png
  std::string truth;    // input; in a folder: STEM.truth.u8, STEM.u8, STEM.label or STEM.npy
};

struct ScanJob {
  std::string input;
  std::string save, picture, truth;  // files; "" for none
};

// INVALID_ARGUMENT: no scan, one output file for many scans, two scans that would write the same file, or an unknown
// extension. NOT_FOUND: a missing input or truth.
absl::StatusOr<std::vector<ScanJob>> PlanJobs(const ScanPaths& paths);

// Checks the output files of jobs that save tensors. Each job's ScanJob::save is the path PREFIX.npy of WriteTensors.
// names: of the model's tensors; none: all. INVALID_ARGUMENT if two tensors or scans would write the same file, or a
// scan would be overwritten.
absl::Status CheckTensorFiles(const std::vector<ScanJob>& jobs, const v1::ModelVersion& model,
                              const std::vector<std::string>& names);

}  // namespace voxserve::client
