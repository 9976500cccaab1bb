#pragma once

// UploadedGeometry makes a batch's geometry on the CPU, which knows exact sizes, for a GPU that has no room to make it.
// It uploads what the steps read.
//
// Serves one batch of a program of one segment: no scores decide about its sites. RESOURCE_EXHAUSTED for memory of the
// host or the device. Not thread-safe.

#include "absl/status/status.h"
#include "engine/geometry/batch_geometry.h"
#include "engine/geometry/device_geometry.h"
#include "engine/geometry/geometry_maker.h"
#include "kernels/core/thread_pool.h"

namespace voxserve {

class UploadedGeometry final : public GeometryMaker {
 public:
  // All outlive it. memory: the host's. on_device begins its batch before MakeRulebook.
  UploadedGeometry(kernels::ThreadPool* pool, std::pmr::memory_resource* memory, DeviceGeometry* on_device)
      : on_host_(pool, memory), on_device_(on_device) {}

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
