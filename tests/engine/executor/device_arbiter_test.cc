// Tests DeviceArbiter on a CPU, where batches run side by side and share the host's memory.

#include "engine/executor/device_arbiter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "engine/base/error_reason.h"

namespace voxserve::device_arbiter_test {
namespace {

BatchReport HostIsFull() {
  BatchReport output;
  output.status = OutOfMemoryError();
  output.host_is_full = true;
  return output;
}

TEST(DeviceArbiterTest, ABatchThatHadTheHostAloneRunsOnce) {
  DeviceArbiter arbiter;
  int num_runs = 0;
  const BatchReport output = arbiter.RunWithRetry({}, [&](const RunOptions&) {
    ++num_runs;
    return HostIsFull();
  });
  EXPECT_TRUE(IsOutOfMemory(output.status));
  EXPECT_EQ(num_runs, 1);
}

TEST(DeviceArbiterTest, ABatchThatFoundTheHostFullBesideAnotherRunsAgainAlone) {
  DeviceArbiter arbiter;
  absl::Notification has_begun, may_end;
  std::atomic<bool> has_ended{false};
  std::thread other([&] {
    arbiter.TryOnce({}, [&](const RunOptions&) {
      has_begun.Notify();
      may_end.WaitForNotification();
      has_ended = true;
      return BatchReport();
    });
  });
  has_begun.WaitForNotification();
  int num_runs = 0;
  const BatchReport output = arbiter.RunWithRetry({}, [&](const RunOptions&) {
    if (++num_runs > 1) {
      EXPECT_TRUE(has_ended);
      return BatchReport();
    }
    may_end.Notify();
    return HostIsFull();
  });
  if (!may_end.HasBeenNotified()) may_end.Notify();
  other.join();
  EXPECT_TRUE(output.status.ok());
  EXPECT_EQ(num_runs, 2);
}

}  // namespace
}  // namespace voxserve::device_arbiter_test
