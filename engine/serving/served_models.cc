#include "engine/serving/served_models.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"

namespace voxserve {

void ServedModels::AddLoading(const std::string& name, int64_t version) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = models_[name][version];
  if (entry.handle != nullptr) return;
  entry.info = {.name = name, .version = version, .state = ModelState::kLoading};
}

ModelHandle ServedModels::SetReady(ModelHandle model) {
  absl::MutexLock lock(&mutex_);
  const std::string& name = model->info.name;
  const int64_t version = model->info.version;
  if (const auto unloaded = unloaded_.find(name); unloaded != unloaded_.end()) unloaded->second.erase(version);
  Entry& entry = models_[name][version];
  entry.info = model->info;
  std::swap(entry.handle, model);
  return model;
}

void ServedModels::SetFailed(const std::string& name, int64_t version, std::vector<std::string> problems) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = models_[name][version];
  entry.info.name = name;
  entry.info.version = version;
  if (entry.handle == nullptr) entry.info.state = ModelState::kFailed;
  entry.info.problems = std::move(problems);
}

ModelHandle ServedModels::Remove(const std::string& name, int64_t version, bool by_call) {
  absl::MutexLock lock(&mutex_);
  const auto model = models_.find(name);
  if (model == models_.end()) return nullptr;
  const auto entry = model->second.find(version);
  if (entry == model->second.end()) return nullptr;
  ModelHandle handle = std::move(entry->second.handle);
  model->second.erase(entry);
  if (model->second.empty()) models_.erase(model);
  if (by_call) unloaded_[name].insert(version);
  return handle;
}

void ServedModels::Clear() {
  std::map<std::string, Entries> models;
  absl::MutexLock lock(&mutex_);
  models.swap(models_);
}

std::vector<std::string> ServedModels::Names() const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [name, versions] : models_) names.push_back(name);
  return names;
}

std::vector<int64_t> ServedModels::Versions(const std::string& name) const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<int64_t> versions;
  const auto model = models_.find(name);
  if (model == models_.end()) return versions;
  for (const auto& [version, entry] : model->second) versions.push_back(version);
  return versions;
}

std::vector<int64_t> ServedModels::ReadyVersions(const std::string& name) const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<int64_t> versions;
  const auto model = models_.find(name);
  if (model == models_.end()) return versions;
  for (const auto& [version, entry] : model->second) {
    if (entry.handle != nullptr) versions.push_back(version);
  }
  return versions;
}

std::string ServedModels::HintOf(const std::string& name, int64_t version) const {
  const auto unloaded = unloaded_.find(name);
  if (unloaded == unloaded_.end() || unloaded->second.empty()) return "";
  if (version != 0 && unloaded->second.count(version) == 0) return "";
  return "; it was unloaded, LoadModel brings it back";
}

absl::StatusOr<const ServedModels::Entry*> ServedModels::FindEntry(std::string_view name_view, int64_t version) const {
  const std::string name(name_view);  // Debian's absl::StrCat takes no std::string_view
  const auto model = models_.find(name);
  if (model == models_.end()) {
    const auto append_name = [](std::string* out, const auto& named) { absl::StrAppend(out, named.first); };
    return WithReason(absl::NotFoundError(absl::StrCat(
                          "no model \"", name, "\"; there is ",
                          models_.empty() ? "none" : absl::StrJoin(models_, ", ", append_name), HintOf(name, version))),
                      error_reason::kModelNotFound);
  }
  const Entries& versions = model->second;
  if (version == 0) {
    for (auto entry = versions.rbegin(); entry != versions.rend(); ++entry) {
      if (entry->second.handle != nullptr) return &entry->second;
    }
    return &versions.rbegin()->second;
  }
  const auto entry = versions.find(version);
  if (entry == versions.end()) {
    const auto append_version = [](std::string* out, const auto& numbered) { absl::StrAppend(out, numbered.first); };
    return WithReason(
        absl::NotFoundError(absl::StrCat("model \"", name, "\" has no version ", version, "; there is ",
                                         absl::StrJoin(versions, ", ", append_version), HintOf(name, version))),
        error_reason::kVersionNotFound);
  }
  return &entry->second;
}

absl::Status WhyNotReady(const ModelVersionInfo& info) {
  const std::string which = absl::StrCat("model \"", info.name, "\" version ", info.version);
  if (info.state == ModelState::kLoading) {
    return WithRetryDelay(
        WithReason(absl::UnavailableError(absl::StrCat(which, " is still loading")), error_reason::kModelLoading),
        absl::Seconds(1));
  }
  return WithReason(
      absl::UnavailableError(absl::StrCat(which, " could not be loaded: ", absl::StrJoin(info.problems, "; "))),
      error_reason::kModelFailed);
}

absl::Status CheckPriority(const ModelVersionInfo& info, int priority) {
  if (priority >= 0 && priority < info.priority_levels) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError(absl::StrCat("priority is ", priority, "; model \"", info.name,
                                                            "\" has ", info.priority_levels, " levels, from 0")),
                    error_reason::kBadPriority);
}

absl::Status CheckOutputs(const ModelVersionInfo& info, bool return_scores) {
  if (!return_scores || info.has_scores) return absl::OkStatus();
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat("model \"", info.name, "\" has no scores per point to return",
                                              info.has_boxes ? "; its boxes have their own" : "")),
      error_reason::kUnsupportedOutput);
}

absl::StatusOr<ModelHandle> ServedModels::Find(std::string_view name, int64_t version) const {
  absl::ReaderMutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const Entry* entry, FindEntry(name, version));
  if (entry->handle != nullptr) return entry->handle;
  return WhyNotReady(entry->info);
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
