#include "client/cpp/cli/scan_jobs.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <set>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/io/box_file.h"
#include "client/cpp/io/compacting.h"
#include "client/cpp/io/label_file.h"
#include "client/cpp/io/point_cloud_reader.h"
#include "client/cpp/io/tensor_file.h"

namespace voxserve::client {
namespace {

namespace fs = std::filesystem;

// Returns a file's name without its folder and its extensions: "b" for "a/b.pcd.bin".
std::string StemOf(const std::string& path) {
  const fs::path name = fs::path(path).filename();
  return absl::EndsWith(name.string(), ".pcd.bin") ? name.stem().stem().string() : name.stem().string();
}

bool IsPng(const std::string& path) { return absl::EndsWithIgnoreCase(path, ".png"); }

absl::StatusOr<std::vector<std::string>> FindScans(const std::vector<std::string>& inputs) {
  std::vector<std::string> scans;
  for (const std::string& input : inputs) {
    std::error_code error;
    if (!fs::exists(input, error)) return absl::NotFoundError(absl::StrCat(input, ": no such file or folder"));
    if (!fs::is_directory(input, error)) {
      scans.push_back(input);
      continue;
    }
    std::vector<std::string> found;
    for (fs::directory_iterator entry(input, error), end; !error && entry != end; entry.increment(error)) {
      std::error_code of_entry;
      if (entry->is_regular_file(of_entry) && IsPointCloudFile(entry->path().string())) {
        found.push_back(entry->path().string());
      }
    }
    if (error) {
      return absl::PermissionDeniedError(absl::StrCat(input, ": the folder cannot be read: ", error.message()));
    }
    if (found.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(input, ": the folder has no scans (.bin, .pcd, .ply or .npy)"));
    }
    std::sort(found.begin(), found.end());
    scans.insert(scans.end(), found.begin(), found.end());
  }
  return scans;
}

// Returns the output file for one scan: `output` itself if it is a file (is_file), otherwise a file in the folder
// `output`, which is created. Returns "" if `output` is "". formats: the extensions of all files that can be written.
absl::StatusOr<std::string> OutputFor(absl::string_view flag, const std::string& output, bool is_file,
                                      absl::string_view formats, const std::string& scan, absl::string_view extension,
                                      bool is_only) {
  if (output.empty()) return std::string();
  if (is_file) {
    if (!is_only) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " ", output, " is one file, but there are several scans; name a folder"));
    }
    return output;
  }
  std::error_code error;
  if (fs::path(output).has_extension() && !fs::is_directory(output, error)) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", output, ": write a ", formats, " file, or to a folder"));
  }
  fs::create_directories(output, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat(output, ": the folder cannot be made: ", error.message()));
  return (fs::path(output) / absl::StrCat(StemOf(scan), extension)).string();
}

// Returns true if both paths name the same file.
bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  return a == b || fs::equivalent(a, b, error);
}

// Returns a path that all names of a file share, whether it exists or not.
fs::path PlaceOf(const std::string& path) {
  std::error_code error;
  fs::path place = fs::weakly_canonical(fs::absolute(path, error), error);
  return error ? fs::path(path) : place;
}

absl::StatusOr<std::string> TruthFor(const std::string& truth, const std::string& scan, bool is_only) {
  if (truth.empty()) return std::string();
  std::error_code error;
  if (!fs::is_directory(truth, error)) {
    if (!is_only) {
      return absl::InvalidArgumentError(
          absl::StrCat("--truth ", truth, " is one file, but there are several scans; name a folder"));
    }
    return truth;
  }
  for (const absl::string_view extension : {".truth.u8", ".u8", ".label", ".npy"}) {
    const fs::path candidate = fs::path(truth) / absl::StrCat(StemOf(scan), extension);
    if (fs::exists(candidate, error)) return candidate.string();
  }
  return absl::NotFoundError(
      absl::StrCat(truth, ": no labels for ", scan, " (", StemOf(scan), ".truth.u8, .u8, .label or .npy)"));
}

}  // namespace

absl::StatusOr<std::vector<ScanJob>> PlanJobs(const ScanPaths& paths) {
  const absl::StatusOr<std::vector<std::string>> scans = FindScans(paths.inputs);
  if (!scans.ok()) return scans.status();
  if (scans->empty()) return absl::InvalidArgumentError("no scan given");
  const bool is_only = scans->size() == 1;
  std::set<std::string> outputs;
  std::vector<ScanJob> jobs;
  for (const std::string& scan : *scans) {
    const bool saves_file = IsLabelFile(paths.save) || IsBoxFile(paths.save);
    absl::StatusOr<std::string> save =
        OutputFor("--save", paths.save, saves_file, ".npy, .label, .json or .csv", scan, ".npy", is_only);
    if (!save.ok()) return save.status();
    absl::StatusOr<std::string> picture =
        OutputFor("--picture", paths.picture, IsPng(paths.picture), ".png", scan, ".png", is_only);
    if (!picture.ok()) return picture.status();
    absl::StatusOr<std::string> truth = TruthFor(paths.truth, scan, is_only);
    if (!truth.ok()) return truth.status();
    for (const std::string& output : {*save, *picture}) {
      if (!output.empty() && !outputs.insert(output).second) {
        return absl::InvalidArgumentError(absl::StrCat("two scans named ", StemOf(scan), " would both write ", output));
      }
      if (output.empty()) continue;
      if (IsSameFile(output, scan)) {
        return absl::InvalidArgumentError(absl::StrCat(output, " would be written over the scan itself"));
      }
      if (!truth->empty() && IsSameFile(output, *truth)) {
        return absl::InvalidArgumentError(absl::StrCat(output, " would be written over the labels of --truth"));
      }
    }
    jobs.push_back({scan, *std::move(save), *std::move(picture), *std::move(truth)});
  }
  return jobs;
}

absl::Status CheckTensorFiles(const std::vector<ScanJob>& jobs, const v1::ModelVersion& model,
                              const std::vector<std::string>& names) {
  std::set<fs::path> scans, outputs;
  for (const ScanJob& job : jobs) scans.insert(PlaceOf(job.input));
  for (const ScanJob& job : jobs) {
    if (job.save.empty()) continue;
    for (const v1::TensorInfo& tensor : model.tensors()) {
      if (!names.empty() && std::find(names.begin(), names.end(), tensor.name()) == names.end()) continue;
      for (const std::string& file : TensorFiles(job.save, tensor.name(), tensor.rows())) {
        const fs::path place = PlaceOf(file);
        if (scans.contains(place))
          return absl::InvalidArgumentError(absl::StrCat(file, " would be written over a scan"));
        if (!outputs.insert(place).second) {
          return absl::InvalidArgumentError(absl::StrCat("two tensors would both be written to ", file));
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CompactOrWarn(const std::string& file, PointCloud* cloud) {
  const absl::StatusOr<CompactLoss> loss = Compact(cloud);
  if (!loss.ok()) return absl::Status(loss.status().code(), absl::StrCat(file, ": ", loss.status().message()));
  if (!loss->reason.empty() && !loss->is_compact_already) {
    std::cerr << "voxserve-client: warning: " << file << " is sent with all its bits: " << loss->reason << "\n";
  }
  return absl::OkStatus();
}

}  // namespace voxserve::client
