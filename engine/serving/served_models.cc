#include "engine/serving/served_models.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"

namespace voxserve {

void ServedModels::AddLoading(const std::string& name, int64_t version) {
  absl::MutexLock lock(&mutex_);
  ModelVersionInfo& info = models_[name][version].info;
  info.name = name;
  info.version = version;
  info.state = ModelState::kLoading;
}

void ServedModels::SetReady(ModelHandle model) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = models_[model->info.name][model->info.version];
  entry.info = model->info;
  entry.handle = std::move(model);
}

void ServedModels::SetFailed(const std::string& name, int64_t version, std::vector<std::string> problems) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = models_[name][version];
  entry.info.state = ModelState::kFailed;
  entry.info.problems = std::move(problems);
}

absl::StatusOr<const ServedModels::Entry*> ServedModels::FindEntry(std::string_view name_view, int64_t version) const {
  const std::string name(name_view);  // Debian's absl::StrCat takes no std::string_view
  const auto model = models_.find(name);
  if (model == models_.end()) {
    const auto append_name = [](std::string* out, const auto& named) { absl::StrAppend(out, named.first); };
    return WithReason(
        absl::NotFoundError(absl::StrCat("no model \"", name, "\"; there is ",
                                         models_.empty() ? "none" : absl::StrJoin(models_, ", ", append_name))),
        error_reason::kModelNotFound);
  }
  const Versions& versions = model->second;
  if (version == 0) {
    for (auto entry = versions.rbegin(); entry != versions.rend(); ++entry) {
      if (entry->second.handle != nullptr) return &entry->second;
    }
    return &versions.rbegin()->second;
  }
  const auto entry = versions.find(version);
  if (entry == versions.end()) {
    const auto append_version = [](std::string* out, const auto& numbered) { absl::StrAppend(out, numbered.first); };
    return WithReason(absl::NotFoundError(absl::StrCat("model \"", name, "\" has no version ", version, "; there is ",
                                                       absl::StrJoin(versions, ", ", append_version))),
                      error_reason::kVersionNotFound);
  }
  return &entry->second;
}

absl::StatusOr<ModelHandle> ServedModels::Find(std::string_view name, int64_t version) const {
  absl::ReaderMutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const Entry* entry, FindEntry(name, version));
  if (entry->handle != nullptr) return entry->handle;
  const std::string which = absl::StrCat("model \"", entry->info.name, "\" version ", entry->info.version);
  if (entry->info.state == ModelState::kLoading) {
    return WithRetryDelay(
        WithReason(absl::UnavailableError(absl::StrCat(which, " is still loading")), error_reason::kModelLoading),
        absl::Seconds(1));
  }
  return WithReason(
      absl::UnavailableError(absl::StrCat(which, " could not be loaded: ", absl::StrJoin(entry->info.problems, "; "))),
      error_reason::kModelFailed);
}

ModelVersionInfo ServedModels::InfoOf(const Entry& entry) {
  ModelVersionInfo info = entry.info;
  if (entry.handle != nullptr && entry.handle->plans != nullptr) info.plan_source = entry.handle->plans->source(0);
  return info;
}

std::vector<ModelVersionInfo> ServedModels::List() const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<ModelVersionInfo> list;
  for (const auto& [name, versions] : models_) {
    for (const auto& [version, entry] : versions) list.push_back(InfoOf(entry));
  }
  return list;
}

absl::StatusOr<ModelVersionInfo> ServedModels::Describe(std::string_view name, int64_t version) const {
  absl::ReaderMutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const Entry* entry, FindEntry(name, version));
  return InfoOf(*entry);
}

}  // namespace voxserve
