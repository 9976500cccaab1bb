#pragma once

// OutputVersion is a version folder that is being written. Its files are written to a folder beside it, whose name
// begins with a dot, so that no server sees it. Commit moves the finished folder to its place in one step, in which it
// also takes the place of an older one; without Commit nothing remains. One thread uses it.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/calibrate/scales.h"

namespace voxserve::calibrate {

// Returns the version of a folder MODEL/VERSION. Returns INVALID_ARGUMENT, an error about --output, if its name is
// none.
absl::StatusOr<int64_t> VersionOf(const std::filesystem::path& output);

class OutputVersion {
 public:
  // output: a version folder, MODEL/VERSION; MODEL is created if it is missing. source: the version folder that it is
  // made from. Returns VersionOf's error, INVALID_ARGUMENT if output is the source or holds it, also through links,
  // ALREADY_EXISTS if the folder exists and may_overwrite is false, and FAILED_PRECONDITION if the folder cannot be
  // written.
  static absl::StatusOr<std::unique_ptr<OutputVersion>> Create(const std::filesystem::path& output,
                                                               const std::filesystem::path& source, bool may_overwrite);
  ~OutputVersion();
  OutputVersion(const OutputVersion&) = delete;
  OutputVersion& operator=(const OutputVersion&) = delete;

  const std::filesystem::path& path() const { return path_; }  // where Commit puts it; absolute
  // The unfinished version, as LoadModelVersion takes it.
  const std::filesystem::path& model_folder() const { return temporary_; }
  int64_t version() const { return version_; }

  // Writes a file of the unfinished version, in place of an older one. Returns FAILED_PRECONDITION with the reason.
  absl::Status Write(const std::string& name, const std::string& content);

  // Moves the version to its place. Returns ALREADY_EXISTS if a folder has appeared there that it may not replace, else
  // FAILED_PRECONDITION with the reason; what is there then stays.
  absl::Status Commit();

 private:
  OutputVersion(std::filesystem::path path, int64_t version, bool may_overwrite)
      : path_(std::move(path)), version_(version), may_overwrite_(may_overwrite) {}

  // Replaces the version that is there.
  absl::Status Exchange();

  const std::filesystem::path path_;
  const int64_t version_;
  const bool may_overwrite_;
  std::vector<std::filesystem::path> created_;  // folders above the version that did not exist, the outermost first
  std::filesystem::path temporary_;
};

// Returns the content of a safetensors file with a tensor "<node>.scale" for each scale, behind its other tensors.
// file: the content of a file that a model was loaded from, which has none of these tensors.
std::string WithScales(const std::string& file, const Scales& scales);

// Returns the text of a config.textproto that serves a version in 8 bits as `config` serves the float version. config:
// the text of the float version's. Its version_policy is left out, since a version's own config has none.
std::string Int8Config(const std::string& config, const std::vector<std::string>& float_nodes);

}  // namespace voxserve::calibrate
