#include "engine/base/status_macros.h"
#include "engine/geometry/uploaded_geometry.h"

namespace voxserve {

absl::Status UploadedGeometry::MakeLevel(int level, int parent, kernels::OutputCoordinatesParams rule) {
  return on_host_.MakeLevel(level, parent, rule);
}

absl::Status UploadedGeometry::UniteLevels(int level, int a, int b) { return on_host_.UniteLevels(level, a, b); }

absl::Status UploadedGeometry::FilterLevel(int level, int parent, kernels::SiteFilterParams filter) {
  return on_host_.FilterLevel(level, parent, filter);
}

absl::Status UploadedGeometry::MakeRulebook(int index, const RulebookRequest& request) {
  RulebookRequest merged = request;
  merged.search = kernels::MapSearch::kMerge;
  RETURN_IF_ERROR(on_host_.MakeRulebook(0, merged));  // every rulebook reuses the memory of number 0
  return on_device_->UploadRulebook(index, request, on_host_.rulebook(0));
}

absl::Status UploadedGeometry::SwapRulebook(int index, int of) { return on_device_->SwapRulebook(index, of); }

absl::Status UploadedGeometry::Finish() { return on_device_->UploadVoxels(on_host_); }

absl::Status UploadedGeometry::MakeSampleBegins(absl::Span<const int> levels) {
  RETURN_IF_ERROR(on_host_.MakeSampleBegins(levels));
  for (const int level : levels) RETURN_IF_ERROR(on_device_->UploadSampleBegin(level, on_host_));
  return absl::OkStatus();
}

absl::Status UploadedGeometry::MakeOrders(absl::Span<const OrderRequest> orders) {
  RETURN_IF_ERROR(on_host_.MakeOrders(orders));
  return on_device_->UploadOrders(orders, on_host_);
}

}  // namespace voxserve
