#pragma once

// Makes a batch's geometry on the CPU, which knows exact sizes, for a GPU that has no room to make it. What the steps
// read there is uploaded as soon as it is made.
//
// One is made for one batch of one segment: neither filters' scores nor a second Finish. RESOURCE_EXHAUSTED for memory
// of either kind. Not thread-safe.

#include "absl/status/status.h"
#include "engine/geometry/batch_geometry.h"
#include "engine/geometry/device_geometry.h"
#include "engine/geometry/geometry_maker.h"
#include "kernels/core/thread_pool.h"

namespace voxserve {

class UploadedGeometry final : public GeometryMaker {
 public:
  // Both outlive it. on_device begins its batch before MakeRulebook.
  UploadedGeometry(kernels::ThreadPool* pool, DeviceGeometry* on_device) : on_host_(pool), on_device_(on_device) {}

  // Where the caller samples and voxelizes the points, before MakeLevel.
  BatchGeometry& on_host() { return on_host_; }

  absl::Status MakeLevel(int level, int parent, kernels::OutputCoordinatesParams rule) override;
  absl::Status UniteLevels(int level, int a, int b) override;
  absl::Status FilterLevel(int level, int parent, kernels::SiteFilterParams filter) override;
  // Found by merging, whatever the request says.
  absl::Status MakeRulebook(int index, const RulebookRequest& request) override;
  absl::Status SwapRulebook(int index, int of) override;
  absl::Status Finish() override;
  absl::Status MakeSampleBegin(int level) override;

 private:
  BatchGeometry on_host_;
  DeviceGeometry* const on_device_;
};

}  // namespace voxserve
