#pragma once

// PinnedClouds copies clouds to page-locked (pinned) memory, for tests and benchmarks. With a GPU, CUDA page-locks the
// memory. With the CPU, the memory is pageable and only marked as page-locked.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "engine/runtime/pinned_memory.h"
#include "engine/runtime/pinned_pool.h"
#include "engine/tensor/point_cloud.h"
#include "kernels/core/cuda_stream.h"
#include "tests/support/fake_pinned_memory.h"
#include "tests/support/test_device.h"

namespace voxserve {

class PinnedClouds {
 public:
  explicit PinnedClouds(support::Device device) {
    PinnedPool::Source source = fake_.Source();
    if constexpr (kernels::kHasCuda) {
      if (device == support::Device::kCuda) source = PinnedSource(0);
    }
    pool_ = PinnedPool::Create({.source = std::move(source)});
  }

  // Returns a copy of the cloud in page-locked memory. The cloud must have from PinnedPool::kMinBytes to kMaxBytes
  // bytes, because the pool has no page-locked buffers of other sizes.
  PointCloud Copy(const PointCloud& cloud) {
    const auto bytes = static_cast<int64_t>(cloud.bytes().size());
    HostBuffer buffer = *pool_->Take(bytes, BufferLife::kRequest);
    if (!buffer.is_pinned()) {
      pool_->Adjust();
      buffer = *pool_->Take(bytes, BufferLife::kRequest);
    }
    EXPECT_TRUE(buffer.is_pinned()) << bytes << " bytes";
    buffer.Write(0, cloud.bytes());
    buffer.FinishWrites();
    return *PointCloud::Create(cloud.layout(), std::move(buffer));
  }

  PinnedPool& pool() { return *pool_; }

 private:
  support::FakePinnedMemory fake_;
  std::shared_ptr<PinnedPool> pool_;
};

}  // namespace voxserve
