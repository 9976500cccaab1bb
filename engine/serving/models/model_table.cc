#include "engine/serving/models/model_table.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"

namespace voxserve {

void ModelTable::AddLoading(const std::string& name, int64_t version) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = models_[name][version];
  if (entry.handle != nullptr) return;
  entry.info = {.name = name, .version = version, .state = ModelState::kLoading};
}

ModelHandle ModelTable::SetReady(ModelHandle model) {
  absl::MutexLock lock(&mutex_);
  const std::string& name = model->info.name;
  const int64_t version = model->info.version;
  if (const auto unloaded = unloaded_.find(name); unloaded != unloaded_.end()) unloaded->second.erase(version);
  Entry& entry = models_[name][version];
  entry.info = model->info;
  std::swap(entry.handle, model);
  return model;
}

void ModelTable::SetFailed(const std::string& name, int64_t version, std::vector<std::string> problems) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = models_[name][version];
  entry.info.name = name;
  entry.info.version = version;
  if (entry.handle == nullptr) entry.info.state = ModelState::kFailed;
  entry.info.problems = std::move(problems);
}

ModelHandle ModelTable::Remove(const std::string& name, int64_t version, bool by_call) {
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

void ModelTable::Clear() {
  std::map<std::string, Entries> models;
  absl::MutexLock lock(&mutex_);
  models.swap(models_);
}

std::vector<std::string> ModelTable::Names() const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<std::string> names;
  for (const auto& [name, versions] : models_) names.push_back(name);
  return names;
}

std::vector<int64_t> ModelTable::Versions(const std::string& name) const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<int64_t> versions;
  const auto model = models_.find(name);
  if (model == models_.end()) return versions;
  for (const auto& [version, entry] : model->second) versions.push_back(version);
  return versions;
}

std::vector<int64_t> ModelTable::ReadyVersions(const std::string& name) const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<int64_t> versions;
  const auto model = models_.find(name);
  if (model == models_.end()) return versions;
  for (const auto& [version, entry] : model->second) {
    if (entry.handle != nullptr) versions.push_back(version);
  }
  return versions;
}

std::string ModelTable::HintOf(const std::string& name, int64_t version) const {
  const auto unloaded = unloaded_.find(name);
  if (unloaded == unloaded_.end() || unloaded->second.empty()) return "";
  if (version != 0 && unloaded->second.count(version) == 0) return "";
  return "; it was unloaded, LoadModel brings it back";
}

absl::StatusOr<const ModelTable::Entry*> ModelTable::FindEntry(std::string_view name_view, int64_t version) const {
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

absl::StatusOr<ModelHandle> ModelTable::Find(std::string_view name, int64_t version) const {
  absl::ReaderMutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const Entry* entry, FindEntry(name, version));
  if (entry->handle != nullptr) return entry->handle;
  return WhyNotReady(entry->info);
}

ModelVersionInfo ModelTable::InfoOf(const Entry& entry) {
  ModelVersionInfo info = entry.info;
  if (entry.handle != nullptr && entry.handle->plans != nullptr) info.plan_source = entry.handle->plans->source(0);
  return info;
}

std::vector<ModelVersionInfo> ModelTable::List() const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<ModelVersionInfo> list;
  for (const auto& [name, versions] : models_) {
    for (const auto& [version, entry] : versions) list.push_back(InfoOf(entry));
  }
  return list;
}

absl::StatusOr<ModelVersionInfo> ModelTable::Describe(std::string_view name, int64_t version) const {
  absl::ReaderMutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const Entry* entry, FindEntry(name, version));
  return InfoOf(*entry);
}

}  // namespace voxserve
