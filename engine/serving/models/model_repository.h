#pragma once

// A model repository is a folder of model folders:
//
//   <root>/<model>/config.textproto                 optional
//   <root>/<model>/<version>/model.textproto        version: 1, 2, 3, ... without leading zeros
//   <root>/<model>/<version>/weights.safetensors
//
// - Files: these functions read and never write. They follow links, and ignore names that begin with a dot (Kubernetes
//   mounts have such names) and plain files beside the folders.
// - Threads: they have no state; the model manager's thread calls them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace voxserve {

struct ModelFolder {
  std::string name;               // the name in requests
  std::vector<int64_t> versions;  // ascending; never empty
};

struct RepositoryListing {
  std::vector<ModelFolder> models;      // by name
  std::vector<std::string> unreadable;  // names of folders that could not be listed
  std::vector<std::string> warnings;    // folders that were skipped, and why
};

// Lists the repository. NOT_FOUND if root is not a folder, PERMISSION_DENIED if it cannot be listed.
absl::StatusOr<RepositoryListing> ScanRepository(const std::filesystem::path& root);

// Returns true if a folder of the repository may have this name: one component of a path that does not begin with a
// dot. Any other name must never become part of a path.
bool IsModelName(std::string_view name);

// Lists one model of the repository; requires IsModelName(name). NOT_FOUND (MODEL_NOT_FOUND, listing the models) if
// there is no such folder or it has no version; PERMISSION_DENIED if it cannot be listed.
absl::StatusOr<ModelFolder> ScanModel(const std::filesystem::path& root, const std::string& name);

// Returns a text that changes whenever one of the version's files (the two, and the model's config) is written,
// replaced or removed. Opens none of them.
std::string FingerprintOf(const std::filesystem::path& model_folder, int64_t version);

}  // namespace voxserve
