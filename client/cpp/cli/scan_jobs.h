#pragma once

// PlanJobs makes one job per scan from the command line's files and folders: the file to read, and the files to write
// its results to.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/api/point_cloud.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

struct ScanPaths {
  // Files and folders. A folder stands for its scans in the order of their names, without those of subfolders.
  std::vector<std::string> inputs;
  // `save`, `picture` and `truth` each name a file, or a folder with one file per scan, named after the scan; "" for
  // none. PlanJobs creates missing output folders.
  std::string save;     // labels: .npy or .label; boxes: .json, .csv or .npy; in a folder .npy
  std::string picture;  // .png
  std::string truth;    // is read; in a folder: STEM.truth.u8, STEM.u8, STEM.label or STEM.npy
};

struct ScanJob {
  std::string input;
  std::string save, picture, truth;  // files; "" for none
};

// Returns INVALID_ARGUMENT if there is no scan, one output file for many scans, two scans that would write the same
// file, or an unknown extension; NOT_FOUND if an input or truth is missing; PERMISSION_DENIED if a folder cannot be
// read.
absl::StatusOr<std::vector<ScanJob>> PlanJobs(const ScanPaths& paths);

// Checks the output files of jobs that save tensors. Each job's ScanJob::save is the path PREFIX.npy of WriteTensors
// (client/cpp/io/tensor_file.h). names: the tensors to save; empty: all of the model's. Returns INVALID_ARGUMENT if two
// tensors or scans would write the same file, or a scan would be overwritten.
absl::Status CheckTensorFiles(const std::vector<ScanJob>& jobs, const v1::ModelVersion& model,
                              const std::vector<std::string>& names);

// Makes the cloud one of 16-bit values (io/compacting.h). A cloud that stays as it is for another reason than that it
// is compact already gets a warning on stderr, which names the file. Returns Compact's errors.
absl::Status CompactOrWarn(const std::string& file, PointCloud* cloud);

}  // namespace voxserve::client
