#pragma once

// UploadedGeometry makes a batch's geometry on the CPU and uploads what the steps read. It is used where a GPU has too
// little memory to make the geometry itself: the CPU knows exact sizes, while a GPU takes memory for upper bounds.
//
// It serves one batch of a program with one segment, which has no prune. Methods return RESOURCE_EXHAUSTED if the
// device's memory does not suffice. They return RESOURCE_EXHAUSTED or throw std::bad_alloc if the host's does not. Not
// thread-safe.

#include "absl/status/status.h"
#include "engine/geometry/batch_geometry.h"
#include "engine/geometry/device_geometry.h"
#include "engine/geometry/geometry_maker.h"
#include "kernels/core/thread_pool.h"

namespace voxserve {

class UploadedGeometry final : public GeometryMaker {
 public:
  // All arguments outlive it. memory: for the host's arrays. on_device must begin its batch before MakeRulebook.
  UploadedGeometry(kernels::ThreadPool* pool, std::pmr::memory_resource* memory, DeviceGeometry* on_device)
      : on_host_(pool, memory), on_device_(on_device) {}

  // The caller samples and voxelizes the points with it, before MakeLevel.
  BatchGeometry& on_host() { return on_host_; }

  absl::Status MakeLevel(int level, int parent, kernels::OutputCoordinatesParams rule) override;
  absl::Status UniteLevels(int level, int a, int b) override;
  absl::Status FilterLevel(int level, int parent, kernels::SiteFilterParams filter) override;
  // Always searches by merging, whatever request.search is, since merging needs no table.
  absl::Status MakeRulebook(int index, const RulebookRequest& request) override;
  absl::Status SwapRulebook(int index, int of) override;
  absl::Status Finish() override;
  absl::Status MakeSampleBegins(absl::Span<const int> levels) override;
  absl::Status MakeOrders(absl::Span<const OrderRequest> orders) override;

 private:
  BatchGeometry on_host_;
  DeviceGeometry* const on_device_;
};

}  // namespace voxserve
