#include "engine/serving/model_repository.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/graph/model_loader.h"
#include "engine/graph/problems.h"
#include "engine/graph/text_file.h"

namespace voxserve {
namespace {

namespace fs = std::filesystem;

// The folders in a folder, by name; links to folders count.
absl::StatusOr<std::vector<fs::path>> ListFolders(const fs::path& folder) {
  std::vector<fs::path> folders;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code unreadable;
    if (name[0] != '.' && entry->is_directory(unreadable)) folders.push_back(entry->path());
  }
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat("folder ", Quoted(folder.string()), " cannot be listed: ", error.message()));
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

// "1", "2", ...; not "0", "01", "+1".
std::optional<int64_t> ParseVersion(const std::string& name) {
  int64_t version = 0;
  if (name.empty() || !std::all_of(name.begin(), name.end(), absl::ascii_isdigit) || name[0] == '0')
    return std::nullopt;
  if (!absl::SimpleAtoi(name, &version)) return std::nullopt;
  return version;
}

void ScanModel(const fs::path& folder, RepositoryListing* listing) {
  const std::string place = absl::StrCat("folder ", Quoted(folder.string()));
  const absl::StatusOr<std::vector<fs::path>> entries = ListFolders(folder);
  if (!entries.ok()) {
    listing->warnings.push_back(std::string(entries.status().message()));
    return;
  }
  ModelFolder model = {.name = folder.filename().string(), .versions = {}};
  for (const fs::path& entry : *entries) {
    const std::string name = entry.filename().string();
    if (const std::optional<int64_t> version = ParseVersion(name)) {
      model.versions.push_back(*version);
    } else {
      listing->warnings.push_back(
          absl::StrCat(place, ": ", Quoted(name), " is no version (1, 2, 3, ...) and was passed over"));
    }
  }
  if (model.versions.empty()) {
    std::error_code error;
    const bool is_version = fs::exists(folder / "model.textproto", error);
    listing->warnings.push_back(
        is_version ? absl::StrCat(place, " is a version itself; the repository is the folder above the model's")
                   : absl::StrCat(place, " holds no version (1, 2, 3, ...) and was passed over"));
    return;
  }
  std::sort(model.versions.begin(), model.versions.end());
  listing->models.push_back(std::move(model));
}

}  // namespace

absl::StatusOr<RepositoryListing> ScanRepository(const fs::path& root) {
  std::error_code error;
  if (!fs::is_directory(root, error)) {
    return absl::NotFoundError(absl::StrCat("model repository ", Quoted(root.string()), " is not a folder"));
  }
  ASSIGN_OR_RETURN(const std::vector<fs::path> folders, ListFolders(root));
  RepositoryListing listing;
  for (const fs::path& folder : folders) ScanModel(folder, &listing);
  return listing;
}

absl::StatusOr<LoadedModel> LoadModelVersion(const fs::path& model_folder, int64_t version) {
  const fs::path version_folder = model_folder / absl::StrCat(version);
  absl::StatusOr<Graph> graph = LoadGraph(version_folder);
  Problems problems = ProblemsOf(graph.status());

  std::string config_text;
  std::error_code error;
  const fs::path config_path = model_folder / "config.textproto";
  if (fs::exists(config_path, error)) config_text = ReadFile(config_path, &problems).value_or("");
  ModelConfig config = ParseModelConfig(config_text, graph.ok() ? graph->num_classes : kUnknownNumClasses, &problems);
  if (!problems.empty()) {
    return StatusOfProblems(absl::StrCat("model ", Quoted(version_folder.string())), problems);
  }
  return LoadedModel{*std::move(graph), std::move(config)};
}

}  // namespace voxserve
