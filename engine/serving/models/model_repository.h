#pragma once

// A model repository is a folder of model folders:
//
//   <root>/<model>/config.textproto                 optional
//   <root>/<model>/<version>/model.textproto        version: 1, 2, 3, ... without leading zeros
//   <root>/<model>/<version>/weights.safetensors
//   <root>/<model>/<version>/config.textproto       optional; this version's, in place of the model's
//
// A folder of one model, <model>, is a repository of that model alone; the model has the folder's name.
//
// - Files: these functions read and never write. They follow symbolic links. They ignore names that begin with a dot
//   (Kubernetes mounts have such names), and plain files beside the folders.
// - Threads: these functions have no state. The engine calls ScanRepository once at the start; later calls come from
//   ModelManager's thread.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace voxserve {

// A model has at most so many versions. Of a folder with more, the highest numbers count, and a warning says so.
inline constexpr int kMaxVersions = 1000;

struct ModelFolder {
  std::string name;               // the name in requests
  std::vector<int64_t> versions;  // ascending; never empty
};

struct RepositoryListing {
  std::vector<ModelFolder> models;      // sorted by name
  std::vector<std::string> unreadable;  // names of folders that could not be listed
  std::vector<std::string> warnings;    // folders that were skipped, and why
};

// Lists the repository. Returns NOT_FOUND if root is not a folder or is one version of a model, and PERMISSION_DENIED
// if root cannot be listed.
absl::StatusOr<RepositoryListing> ScanRepository(const std::filesystem::path& root);

// Returns true if a folder of the repository may have this name: one component of a path that does not begin with a
// dot. Callers must check this before they make a path of a name from a request.
bool IsModelName(std::string_view name);

// Lists one model of the repository; requires IsModelName(name). Returns NOT_FOUND (MODEL_NOT_FOUND; the message lists
// the models) if there is no such folder or the folder has no version, and PERMISSION_DENIED if the folder or the
// repository cannot be listed. warnings: null, or gets those of the whole repository (RepositoryListing::warnings).
absl::StatusOr<ModelFolder> ScanModel(const std::filesystem::path& root, const std::string& name,
                                      std::vector<std::string>* warnings = nullptr);

// Returns the folder of a model of the repository: root itself if that is the model's folder, else root/name.
std::filesystem::path ModelFolderOf(const std::filesystem::path& root, const std::string& name);

// Returns a text that changes whenever one of the version's files (model.textproto, weights.safetensors, its own and
// the model's config.textproto) is written, replaced or removed. Opens none of these files.
std::string FingerprintOf(const std::filesystem::path& model_folder, int64_t version);

}  // namespace voxserve
