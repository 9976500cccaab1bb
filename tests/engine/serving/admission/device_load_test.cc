// Tests DeviceLoad, which shares a device's time among the batches that run, and UntilStarted, which shares work among
// devices.

#include "engine/serving/admission/device_load.h"

#include <gtest/gtest.h>

namespace voxserve::device_load_test {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

absl::Time At(double ms) { return kStart + absl::Milliseconds(ms); }
double Ms(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

TEST(DeviceLoadTest, ABatchAloneIsChargedAllItsTime) {
  DeviceLoad device(2);
  EXPECT_TRUE(device.is_idle());
  device.Start(1, absl::Milliseconds(10), At(5));
  EXPECT_NEAR(Ms(device.Remaining(At(8))), 7, 1e-3);
  EXPECT_EQ(device.UntilFree(At(8)), absl::ZeroDuration());  // the other worker is idle
  EXPECT_NEAR(Ms(device.Finish(1, At(17))), 12, 1e-3);
  EXPECT_EQ(device.Remaining(At(20)), absl::ZeroDuration());
}

TEST(DeviceLoadTest, BatchesSideBySideShareTheTime) {
  DeviceLoad device(2);
  device.Start(1, absl::Milliseconds(10), At(0));
  device.Start(2, absl::Milliseconds(10), At(4));
  EXPECT_FALSE(device.is_idle());
  EXPECT_NEAR(Ms(device.Remaining(At(4))), 6 + 10, 1e-3);
  EXPECT_NEAR(Ms(device.UntilFree(At(4))), 12, 1e-3);  // 6 ms of work left, at half speed
  EXPECT_NEAR(Ms(device.Remaining(At(10))), 3 + 7, 1e-3);
  EXPECT_NEAR(Ms(device.Finish(1, At(16))), 10, 1e-3);
  EXPECT_NEAR(Ms(device.Remaining(At(16))), 4, 1e-3);
  EXPECT_NEAR(Ms(device.Finish(2, At(20))), 10, 1e-3);
}

TEST(DeviceLoadTest, IdleTimeIsChargedToNobody) {
  DeviceLoad device(1);
  device.Start(1, absl::Milliseconds(1), At(0));
  device.Finish(1, At(1));
  device.Start(2, absl::Milliseconds(1), At(100));
  EXPECT_NEAR(Ms(device.Finish(2, At(103))), 3, 1e-3);
}

TEST(DeviceLoadTest, OverdueBatchesAreExpectedToBeOverdueAsLongAgain) {
  DeviceLoad device(1);
  device.Start(1, absl::Milliseconds(10), At(0));
  EXPECT_NEAR(Ms(device.Remaining(At(11))), 1, 1e-3);
  EXPECT_NEAR(Ms(device.UntilFree(At(1010))), 1000, 1e-3);
}

TEST(DeviceLoadTest, AClockThatStepsBackChargesNothing) {
  DeviceLoad device(1);
  device.Start(1, absl::Milliseconds(10), At(100));
  EXPECT_NEAR(Ms(device.Remaining(At(50))), 10, 1e-3);
  EXPECT_GE(device.Finish(1, At(40)), absl::ZeroDuration());
}

TEST(DeviceLoadTest, UnknownBatchesAndRemovedWorkers) {
  DeviceLoad device(2);
  EXPECT_EQ(device.Finish(7, At(1)), absl::ZeroDuration());
  device.Start(1, absl::Milliseconds(10), At(0));
  device.RemoveWorker();
  EXPECT_EQ(device.num_workers(), 1);
  EXPECT_FALSE(device.is_idle());
}

TEST(UntilStartedTest, OneDeviceDoesOneAfterTheOther) {
  EXPECT_NEAR(Ms(UntilStarted({absl::Milliseconds(3)}, {absl::Milliseconds(10)})), 13, 1e-6);
  EXPECT_NEAR(Ms(UntilStarted({absl::Milliseconds(3)}, {absl::ZeroDuration()})), 3, 1e-6);
}

TEST(UntilStartedTest, DevicesShareTheWorkByTheirSpeed) {
  // Two equal devices that end together do half of the work each.
  EXPECT_NEAR(
      Ms(UntilStarted({absl::ZeroDuration(), absl::Milliseconds(4)}, {absl::Milliseconds(20), absl::Milliseconds(20)})),
      12, 1e-6);
  // One device does all the work before the other is free.
  EXPECT_NEAR(Ms(UntilStarted({absl::Milliseconds(100), absl::ZeroDuration()},
                              {absl::Milliseconds(20), absl::Milliseconds(20)})),
              20, 1e-6);
  // The devices take 10 ms and 40 ms for the same work, so in 8 ms they do 80% and 20% of it.
  EXPECT_NEAR(
      Ms(UntilStarted({absl::ZeroDuration(), absl::ZeroDuration()}, {absl::Milliseconds(10), absl::Milliseconds(40)})),
      8, 1e-6);
}

}  // namespace
}  // namespace voxserve::device_load_test
