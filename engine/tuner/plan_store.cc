#include "engine/tuner/plan_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/fault.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/model/problems.h"
#include "engine/tuner/plan_file.h"

namespace voxserve {
namespace {

namespace fs = std::filesystem;

constexpr char kPlanDir[] = "plan_dir";
constexpr char kModel[] = "model";
constexpr char kTuned[] = "tuned";

constexpr size_t kDigestDigits = 16;
constexpr size_t kMaxNameBytes = 100;    // limit for a device's name; file systems allow 255 for the whole file name
constexpr size_t kMaxProblemsShown = 5;  // per file

// Converts a name to lower-case letters, digits and single dashes.
std::string FileName(std::string_view name) {
  std::string file_name;
  for (const char c : name.substr(0, kMaxNameBytes)) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      file_name.push_back(absl::ascii_tolower(static_cast<unsigned char>(c)));
    } else if (!file_name.empty() && file_name.back() != '-') {
      file_name.push_back('-');
    }
  }
  if (!file_name.empty() && file_name.back() == '-') file_name.pop_back();
  return file_name.empty() ? "unnamed" : file_name;
}

// Returns the fields in which two keys differ; "" if they are equal.
std::string Difference(const std::string& file_name, const PlanKey& theirs, const PlanKey& ours) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* field, const std::string& their, const std::string& our) {
    if (their != our) differences.push_back(absl::StrCat(field, " is ", Quoted(their), ", here it is ", Quoted(our)));
  };
  compare("model_digest", theirs.model_digest, ours.model_digest);
  compare("device", theirs.device, ours.device);
  compare("compute_capability", theirs.compute_capability, ours.compute_capability);
  compare("cuda_version", theirs.cuda_version, ours.cuda_version);
  compare("engine_version", theirs.engine_version, ours.engine_version);
  compare("dtype", theirs.dtype, ours.dtype);
  return differences.empty() ? "" : absl::StrCat(file_name, ": ", absl::StrJoin(differences, "; "));
}

std::string Summary(const absl::Status& status) {
  const Problems problems = ProblemsOf(status);
  if (problems.size() <= kMaxProblemsShown) return absl::StrJoin(problems, "; ");
  return absl::StrCat(absl::StrJoin(problems.begin(), problems.begin() + kMaxProblemsShown, "; "), "; and ",
                      problems.size() - kMaxProblemsShown, " more");
}

// A temporary file that replaces another file when it is complete, and is removed otherwise.
class NewFile {
 public:
  explicit NewFile(fs::path path) : path_(std::move(path)) {
    std::random_device random;
    const uint64_t suffix = uint64_t{random()} << 32 | random();
    temporary_path_ = path_.parent_path() /
                      absl::StrCat(".", path_.filename().string(), ".", absl::Hex(suffix, absl::kZeroPad16), ".tmp");
  }
  ~NewFile() {
    if (descriptor_ >= 0) close(descriptor_);
    if (is_there_) unlink(temporary_path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Creates the temporary file.
  absl::Status Open() {
    std::error_code error;
    fs::create_directories(path_.parent_path(), error);
    if (error) {
      return absl::ErrnoToStatus(error.value(), absl::StrCat("plan ", Quoted(path_.string()),
                                                             " cannot be written: its folder cannot be created"));
    }
    descriptor_ = open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor_ < 0) return Failed("open");
    is_there_ = true;
    return absl::OkStatus();
  }

  absl::Status Write(std::string_view content) {
    RETURN_IF_ERROR(Open());
    while (!content.empty()) {
      if (FaultAt(FaultSite::kPlanFile)) {
        errno = ENOSPC;
        return Failed("write");
      }
      const ssize_t written = write(descriptor_, content.data(), content.size());
      if (written < 0 && errno != EINTR) return Failed("write");
      if (written > 0) content.remove_prefix(static_cast<size_t>(written));
    }
    if (fsync(descriptor_) != 0) return Failed("fsync");
    if (close(std::exchange(descriptor_, -1)) != 0) return Failed("close");
    if (rename(temporary_path_.c_str(), path_.c_str()) != 0) return Failed("rename");
    is_there_ = false;
    SyncFolder();
    return absl::OkStatus();
  }

 private:
  absl::Status Failed(const char* what) const {
    const int error = errno;
    return absl::ErrnoToStatus(error, absl::StrCat("plan ", Quoted(path_.string()), " cannot be written: ", what));
  }

  // Makes the new name survive a power failure. Some file systems have no such call; there the name may be lost.
  void SyncFolder() const {
    const int folder = open(path_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    static_cast<void>(fsync(folder));
    close(folder);
  }

  const fs::path path_;
  fs::path temporary_path_;
  int descriptor_ = -1;
  bool is_there_ = false;  // it exists under its temporary name
};

absl::Status NoFolderError() { return absl::FailedPreconditionError("the server has no folder for plans"); }

}  // namespace

PlanStore::PlanStore(fs::path plan_dir) : plan_dir_(std::move(plan_dir)) {}

std::optional<PlanStore::Found> PlanStore::Find(const PlanKey& key, const fs::path& version_folder,
                                                std::vector<std::string>& problems) {
  {
    absl::MutexLock lock(&mutex_);
    if (const Found* found = InMemory(key)) return *found;
  }
  for (Place& place : PlacesOf(key, version_folder)) {
    absl::StatusOr<TunedPlan> plan = ReadPlan(place.path);
    if (absl::IsNotFound(plan.status())) continue;
    const std::string name = place.path.filename().string();
    const std::string problem = plan.ok() ? Difference(name, plan->key, key) : Summary(plan.status());
    if (!problem.empty()) {
      problems.push_back(absl::StrCat("folder ", Quoted(place.path.parent_path().string()), ": ", problem));
      continue;
    }
    absl::MutexLock lock(&mutex_);
    if (const Found* newer = InMemory(key)) return *newer;  // another thread saved or found it meanwhile
    found_.push_back({.plan = std::make_shared<const TunedPlan>(*std::move(plan)),
                      .source = std::move(place.source),
                      .path = std::move(place.path)});
    return found_.back();
  }
  return std::nullopt;
}

absl::StatusOr<fs::path> PlanStore::Save(std::shared_ptr<const TunedPlan> plan, const fs::path& version_folder) {
  const std::vector<Place> places = PlacesOf(plan->key, version_folder);
  const std::string name = places.empty() ? "" : places.front().path.filename().string();
  const std::string text = PlanText(*plan);
  RETURN_IF_ERROR(ParsePlan(text, name).status());

  absl::MutexLock saving(&saving_);
  const absl::Status written = places.empty() ? NoFolderError() : NewFile(places.front().path).Write(text);
  Found found = {.plan = plan, .source = kTuned, .path = {}};
  if (written.ok()) {
    found.source = places.front().source;
    found.path = places.front().path;
  }
  absl::MutexLock lock(&mutex_);
  if (Found* before = InMemory(plan->key)) {
    *before = std::move(found);
  } else {
    found_.push_back(std::move(found));
  }
  if (!written.ok()) return written;
  return places.front().path;
}

absl::Status PlanStore::CheckSave(const PlanKey& key, const fs::path& version_folder) const {
  const std::vector<Place> places = PlacesOf(key, version_folder);
  return places.empty() ? NoFolderError() : NewFile(places.front().path).Open();
}

std::vector<PlanStore::Place> PlanStore::PlacesOf(const PlanKey& key, const fs::path& version_folder) const {
  const std::string name = absl::StrCat(FileName(key.device), "-", FileName(key.dtype), ".textproto");
  std::vector<Place> places;
  if (!plan_dir_.empty()) {
    places.push_back({kPlanDir, plan_dir_ / FileName(key.model_digest.substr(0, kDigestDigits)) / name});
  }
  if (!version_folder.empty()) places.push_back({kModel, version_folder / "plans" / name});
  return places;
}

PlanStore::Found* PlanStore::InMemory(const PlanKey& key) {
  const auto found =
      std::find_if(found_.begin(), found_.end(), [&](const Found& entry) { return entry.plan->key == key; });
  return found == found_.end() ? nullptr : &*found;
}

}  // namespace voxserve
