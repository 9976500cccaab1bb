#include "deploy/offline/model_argument.h"

#include <algorithm>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/flags.h"
#include "engine/base/numbers.h"
#include "engine/base/status_macros.h"
#include "engine/serving/models/model_repository.h"

namespace voxserve::offline {

namespace fs = std::filesystem;

absl::StatusOr<ModelArgument> ParseModelArgument(const std::string& text) {
  if (text.empty()) {
    return absl::InvalidArgumentError("--model is missing: a model's folder, for example deploy/models/minkunet");
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || text.find('/', colon) != std::string::npos) return ModelArgument{.folder = text};
  ModelArgument model{.folder = text.substr(0, colon)};
  if (colon == 0 || !ParseInteger(text.substr(colon + 1), &model.version) || model.version < 1) {
    return FlagError("model", text, "a model's folder, or FOLDER:VERSION with a version such as 1");
  }
  return model;
}

absl::StatusOr<FoundVersion> FindVersion(const ModelArgument& model) {
  std::error_code error;
  fs::path folder = fs::absolute(model.folder, error).lexically_normal();
  if (folder.filename().empty()) folder = folder.parent_path();
  if (!fs::is_directory(folder, error)) return absl::NotFoundError(absl::StrCat(model.folder, ": no such folder"));
  ASSIGN_OR_RETURN(const RepositoryListing listing, ScanRepository(folder.parent_path()));
  const auto found = std::find_if(listing.models.begin(), listing.models.end(),
                                  [&](const ModelFolder& m) { return m.name == folder.filename().string(); });
  if (found == listing.models.end()) {
    const std::string warnings = absl::StrJoin(listing.warnings, "; ");
    return absl::NotFoundError(absl::StrCat(folder.string(),
                                            " is not a model's folder: it has no version folder such as ",
                                            (folder / "1").string(), warnings.empty() ? "" : "; ", warnings));
  }
  const std::vector<int64_t>& versions = found->versions;
  if (model.version == 0) return FoundVersion{folder, versions.back(), versions};
  if (std::find(versions.begin(), versions.end(), model.version) != versions.end()) {
    return FoundVersion{folder, model.version, versions};
  }
  return absl::NotFoundError(
      absl::StrCat(folder.string(), " has no version ", model.version, "; it has ", absl::StrJoin(versions, ", ")));
}

RunLimits LimitsOf(const ModelConfig& config) {
  return {
      .ignore_label = config.ignore_label, .max_voxels = config.max_voxels, .voxel_overflow = config.voxel_overflow};
}

}  // namespace voxserve::offline
