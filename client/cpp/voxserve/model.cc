#include <voxserve/model.h>

#include "client/cpp/voxserve/data.h"

namespace voxserve {
inline namespace abi0 {
namespace {

// Returns null if the model has no such class.
const v1::ClassInfo* FindClass(const detail::ModelData& data, uint32_t class_id) {
  for (const v1::ClassInfo& info : data.model.classes()) {
    if (info.id() == class_id) return &info;
  }
  return nullptr;
}

}  // namespace

Model::Model(std::shared_ptr<const detail::ModelData> data) noexcept : data_(std::move(data)) {}

std::string_view Model::name() const noexcept { return data_->model.name(); }
int64_t Model::version() const noexcept { return data_->model.version(); }
ModelState Model::state() const noexcept { return static_cast<ModelState>(data_->model.state()); }
std::vector<std::string> Model::problems() const {
  return {data_->model.problems().begin(), data_->model.problems().end()};
}
std::string_view Model::description() const noexcept { return data_->model.description(); }
std::string_view Model::device() const noexcept { return data_->model.device(); }
uint64_t Model::max_points() const noexcept { return data_->model.max_points(); }
bool Model::has_labels() const noexcept { return data_->model.has_labels(); }
bool Model::has_boxes() const noexcept { return data_->model.has_boxes(); }
bool Model::has_scores() const noexcept { return data_->model.has_scores(); }
bool Model::has_velocities() const noexcept { return data_->model.has_velocities(); }
uint32_t Model::ignore_label() const noexcept { return data_->model.ignore_label(); }

std::vector<uint32_t> Model::class_ids() const {
  std::vector<uint32_t> ids;
  for (const v1::ClassInfo& info : data_->model.classes()) ids.push_back(info.id());
  return ids;
}

std::string_view Model::class_name(uint32_t class_id) const noexcept {
  const v1::ClassInfo* info = FindClass(*data_, class_id);
  return info == nullptr ? std::string_view() : std::string_view(info->name());
}

std::optional<uint32_t> Model::class_color(uint32_t class_id) const noexcept {
  const v1::ClassInfo* info = FindClass(*data_, class_id);
  return info == nullptr ? std::nullopt : std::optional(info->color_rgb());
}

std::vector<std::string> Model::features() const {
  std::vector<std::string> names;
  for (const v1::FeatureInfo& feature : data_->model.features()) names.push_back(feature.name());
  return names;
}

std::vector<std::string> Model::tensor_names() const {
  std::vector<std::string> names;
  for (const v1::TensorInfo& tensor : data_->model.tensors()) names.push_back(tensor.name());
  return names;
}

}  // namespace abi0
}  // namespace voxserve
