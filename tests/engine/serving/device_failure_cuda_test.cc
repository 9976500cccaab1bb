// Tests an engine whose GPU fails. The test breaks the CUDA context of its process for good, so it is a program of its
// own.

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>

#include "engine/base/error_reason.h"
#include "engine/serving/engine.h"
#include "kernels/points/voxel_to_point.h"
#include "tests/support/paths.h"
#include "tests/support/test_device.h"

namespace voxserve::device_failure_cuda_test {
namespace {

absl::StatusOr<InferResult> Infer(Engine& engine) {
  const float point[] = {1, 2, 3, 0.5f};
  std::promise<absl::StatusOr<InferResult>> answer;
  engine.Submit({.model = "minkunet",
                 .cloud = *PointCloud::FromFloats({"x", "y", "z", "intensity"}, point, 1),
                 .done = [&](absl::StatusOr<InferResult> result) { answer.set_value(std::move(result)); }});
  return answer.get_future().get();
}

TEST(DeviceFailureTest, TasksGetUnavailableTheOwnerIsToldAndDrainEnds) {
  SKIP_WITHOUT(support::Device::kCuda);
  std::atomic<int> failures{0};
  auto engine = Engine::Create({.model_repository = support::SourceDir() + "/deploy/models",
                                .devices = "cuda:0",
                                .streams_per_device = 2,
                                .on_device_failed = [&](const absl::Status&) { ++failures; }});
  ASSERT_TRUE(engine.ok()) << engine.status();
  (*engine)->WaitUntilLoaded();
  ASSERT_TRUE(Infer(**engine).ok());

  // This kernel reads at an address without memory. No call on the context works after that.
  auto* const nowhere = reinterpret_cast<int32_t*>(uintptr_t{256});
  const kernels::Rows one_label = kernels::Rows::Packed(nowhere, kernels::DType::kUint8, 1, 1);
  support::ExpectCudaSuccess(kernels::cuda::VoxelToPoint(
      {.point_to_voxel = nowhere, .rows = one_label, .points = one_label}, support::TestStream()));
  absl::StatusOr<InferResult> result = Infer(**engine);
  for (int i = 0; i < 100 && result.ok(); ++i) {  // until the kernel has run
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    result = Infer(**engine);
  }
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable) << result.status();
  EXPECT_EQ(ReasonOf(result.status()), error_reason::kDeviceFailed);
  // Every request must fail from now on, whichever execution context runs it.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Infer(**engine).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_GE(failures, 1);
  (*engine)->Drain();
}

}  // namespace
}  // namespace voxserve::device_failure_cuda_test
