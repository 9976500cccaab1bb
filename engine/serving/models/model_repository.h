#pragma once

// A model repository is a folder of model folders:
//
//   <root>/<model>/config.textproto                 optional
//   <root>/<model>/<version>/model.textproto        version: 1, 2, 3, ... without leading zeros
//   <root>/<model>/<version>/weights.safetensors
//
// - Files: these functions read and never write. They follow links, and ignore names that begin with a dot (Kubernetes
//   mounts have such) and plain files beside the folders.
// - Threads: they keep nothing; the model manager's thread calls them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace voxserve {

struct ModelFolder {
  std::string name;               // what requests use
  std::vector<int64_t> versions;  // ascending; never empty
};

struct RepositoryListing {
  std::vector<ModelFolder> models;      // by name
  std::vector<std::string> unreadable;  // names of folders that are there and could not be listed
  std::vector<std::string> warnings;    // folders that were passed over, and why
};

// NOT_FOUND where root is not a folder, PERMISSION_DENIED where it cannot be listed.
absl::StatusOr<RepositoryListing> ScanRepository(const std::filesystem::path& root);

// Whether a folder of the repository may have this name: one component of a path that does not begin with a dot. What
// is not must never become part of a path.
bool IsModelName(std::string_view name);

// One model of the repository; IsModelName(name). NOT_FOUND (MODEL_NOT_FOUND) where there is no such folder or it holds
// no version, naming the models that there are; PERMISSION_DENIED where it cannot be listed.
absl::StatusOr<ModelFolder> ScanModel(const std::filesystem::path& root, const std::string& name);

// Changes whenever one of the version's files (the two, and the model's config) is written, replaced or removed. Opens
// none of them.
std::string FingerprintOf(const std::filesystem::path& model_folder, int64_t version);

}  // namespace voxserve
