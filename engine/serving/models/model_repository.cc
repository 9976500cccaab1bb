#include "engine/serving/models/model_repository.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"

namespace voxserve {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxOthersTold = 100;  // folders of a model that are no versions

// Returns the folders in a folder, by name; links to folders count.
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

// Accepts "1", "2", ...; not "0", "01", "+1".
std::optional<int64_t> ParseVersion(const std::string& name) {
  int64_t version = 0;
  if (name.empty() || !std::all_of(name.begin(), name.end(), absl::ascii_isdigit) || name[0] == '0')
    return std::nullopt;
  if (!absl::SimpleAtoi(name, &version)) return std::nullopt;
  return version;
}

bool IsVersionFolder(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / "model.textproto", error);
}

// Returns a model's versions, which may be none.
absl::StatusOr<ModelFolder> ScanFolder(const fs::path& folder, std::vector<std::string>* warnings) {
  ASSIGN_OR_RETURN(const std::vector<fs::path> entries, ListFolders(folder));
  const std::string place = absl::StrCat("folder ", Quoted(folder.string()));
  ModelFolder model = {.name = folder.filename().string(), .versions = {}};
  int num_others = 0;
  for (const fs::path& entry : entries) {
    const std::string name = entry.filename().string();
    if (const std::optional<int64_t> version = ParseVersion(name)) {
      model.versions.push_back(*version);
    } else if (++num_others <= kMaxOthersTold) {
      warnings->push_back(absl::StrCat(place, ": ", Quoted(name), " is no version (1, 2, 3, ...) and was passed over"));
    }
  }
  if (num_others > kMaxOthersTold) {
    warnings->push_back(absl::StrCat(place, ": ", num_others - kMaxOthersTold, " more folders are no versions"));
  }
  if (model.versions.empty()) {
    warnings->push_back(
        IsVersionFolder(folder)
            ? absl::StrCat(place, " is a version itself; the repository is the folder above the model's")
            : absl::StrCat(place, " holds no version (1, 2, 3, ...) and was passed over"));
  }
  std::sort(model.versions.begin(), model.versions.end());
  if (model.versions.size() > kMaxVersions) {
    warnings->push_back(absl::StrCat(place, " holds ", model.versions.size(), " versions; the ", kMaxVersions,
                                     " with the highest numbers are looked at"));
    model.versions.erase(model.versions.begin(), model.versions.end() - kMaxVersions);
  }
  return model;
}

// Returns the root's own name, also if it is written as "." or with a slash at the end; "" for the file system's root.
std::string NameOf(const fs::path& root) {
  std::error_code error;
  const fs::path path = fs::absolute(root, error).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// Returns whether the folder is that of one model: one of its versions has a network.
bool IsModelFolder(const fs::path& root, const std::vector<fs::path>& folders) {
  return IsModelName(NameOf(root)) && std::any_of(folders.begin(), folders.end(), [](const fs::path& folder) {
           return ParseVersion(folder.filename().string()).has_value() && IsVersionFolder(folder);
         });
}

// Returns a text that changes with the file; "-" if there is no such file.
std::string IdentityOf(const fs::path& file) {
  struct stat info = {};
  if (::stat(file.c_str(), &info) != 0) return "-";
  return absl::StrCat(info.st_dev, ":", info.st_ino, ":", info.st_size, ":", info.st_mtim.tv_sec, ".",
                      info.st_mtim.tv_nsec, ":", info.st_ctim.tv_sec, ".", info.st_ctim.tv_nsec);
}

}  // namespace

absl::StatusOr<RepositoryListing> ScanRepository(const fs::path& root) {
  std::error_code error;
  if (!fs::is_directory(root, error)) {
    return absl::NotFoundError(absl::StrCat("model repository ", Quoted(root.string()), " is not a folder"));
  }
  if (IsVersionFolder(root)) {
    return absl::NotFoundError(absl::StrCat("model repository ", Quoted(root.string()),
                                            " is one version of a model; name the model's folder, the one above it, "
                                            "or the folder of all models"));
  }
  ASSIGN_OR_RETURN(const std::vector<fs::path> folders, ListFolders(root));
  RepositoryListing listing;
  if (IsModelFolder(root, folders)) {
    ASSIGN_OR_RETURN(ModelFolder model, ScanFolder(root, &listing.warnings));
    model.name = NameOf(root);
    listing.models.push_back(std::move(model));
    return listing;
  }
  for (const fs::path& folder : folders) {
    absl::StatusOr<ModelFolder> model = ScanFolder(folder, &listing.warnings);
    if (!model.ok()) {
      listing.warnings.push_back(std::string(model.status().message()));
      listing.unreadable.push_back(folder.filename().string());
    } else if (!model->versions.empty()) {
      listing.models.push_back(*std::move(model));
    }
  }
  return listing;
}

bool IsModelName(std::string_view name) {
  return !name.empty() && name[0] != '.' && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

absl::StatusOr<ModelFolder> ScanModel(const fs::path& root, const std::string& name,
                                      std::vector<std::string>* warnings) {
  ASSIGN_OR_RETURN(const RepositoryListing listing, ScanRepository(root));
  if (warnings != nullptr) *warnings = listing.warnings;
  std::string names;
  for (const ModelFolder& model : listing.models) {
    if (model.name == name) return model;
    absl::StrAppend(&names, names.empty() ? "" : ", ", model.name);
  }
  if (std::count(listing.unreadable.begin(), listing.unreadable.end(), name) > 0) {
    return absl::PermissionDeniedError(absl::StrCat("the folder of model ", Quoted(name), " cannot be listed"));
  }
  return WithReason(absl::NotFoundError(absl::StrCat("the model repository has no model ", Quoted(name), "; there is ",
                                                     names.empty() ? "none" : names)),
                    error_reason::kModelNotFound);
}

fs::path ModelFolderOf(const fs::path& root, const std::string& name) {
  const absl::StatusOr<std::vector<fs::path>> folders = ListFolders(root);
  return folders.ok() && IsModelFolder(root, *folders) ? root : root / name;
}

std::string FingerprintOf(const fs::path& model_folder, int64_t version) {
  const fs::path folder = model_folder / absl::StrCat(version);
  return absl::StrCat(IdentityOf(folder / "model.textproto"), " ", IdentityOf(folder / "weights.safetensors"), " ",
                      IdentityOf(model_folder / "config.textproto"), " ", IdentityOf(folder / "config.textproto"));
}

}  // namespace voxserve
