#include "server/metrics/load_meter.h"

#include <gtest/gtest.h>

namespace voxserve::load_meter_test {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

// Records a load of `seconds`: every 100 ms an answer that took device_time. Returns the time at its end.
absl::Time RunLoad(LoadMeter* meter, absl::Time now, int seconds, absl::Duration device_time) {
  for (int i = 0; i < 10 * seconds; ++i) {
    meter->AddDeviceTime(now, device_time);
    meter->AddAnswer(now);
    now += absl::Milliseconds(100);
  }
  return now;
}

TEST(LoadMeterTest, HasNoLoadBeforeTheFirstEvent) {
  const ServerLoad load = LoadMeter().Get(kStart, 5, 1);
  EXPECT_EQ(load.utilization, 0);
  EXPECT_EQ(load.answers_per_second, 0);
  EXPECT_EQ(load.errors_per_second, 0);
}

TEST(LoadMeterTest, IsTheShareOfDeviceTime) {
  for (const int seconds : {2, 10, 60}) {
    LoadMeter meter;
    const absl::Time now = RunLoad(&meter, kStart, seconds, absl::Milliseconds(20));
    const ServerLoad load = meter.Get(now - absl::Nanoseconds(1), 0, 1);
    EXPECT_NEAR(load.utilization, 0.2, 0.001) << seconds;
    EXPECT_NEAR(load.answers_per_second, 10, 0.01) << seconds;
    EXPECT_NEAR(meter.Get(now - absl::Nanoseconds(1), 0, 4).utilization, 0.05, 0.001) << "four devices";
  }
}

TEST(LoadMeterTest, WaitingRequestsAreLoad) {
  LoadMeter meter;
  const absl::Time now = RunLoad(&meter, kStart, 20, absl::Milliseconds(80)) - absl::Nanoseconds(1);
  EXPECT_NEAR(meter.Get(now, 0, 1).utilization, 0.8, 0.001);
  EXPECT_NEAR(meter.Get(now, 50, 1).utilization, 0.8 + 50 * 0.08 / 10, 0.001);
  EXPECT_NEAR(meter.Get(now, 500, 2).utilization, (0.8 + 500 * 0.08 / 10) / 2, 0.001) << "overloaded";
}

TEST(LoadMeterTest, ForgetsAfterTheWindow) {
  LoadMeter meter;
  absl::Time now = RunLoad(&meter, kStart, 20, absl::Milliseconds(80));
  now += LoadMeter::kWindow / 2;
  EXPECT_NEAR(meter.Get(now, 0, 1).utilization, 0.4, 0.02) << "half of the window was idle";
  now += LoadMeter::kWindow / 2;
  EXPECT_EQ(meter.Get(now, 0, 1).utilization, 0);
  EXPECT_EQ(meter.Get(now, 0, 1).answers_per_second, 0);
  EXPECT_EQ(meter.Get(now, 7, 1).utilization, 0) << "nothing is known of what waits";
  now = RunLoad(&meter, now + absl::Hours(1), 20, absl::Milliseconds(10)) - absl::Nanoseconds(1);
  EXPECT_NEAR(meter.Get(now, 0, 1).utilization, 0.1, 0.001);
}

TEST(LoadMeterTest, CountsErrorsApart) {
  LoadMeter meter;
  absl::Time now = kStart;
  for (int i = 0; i < 200; ++i, now += absl::Milliseconds(100)) meter.AddError(now);
  const ServerLoad load = meter.Get(now - absl::Nanoseconds(1), 3, 1);
  EXPECT_NEAR(load.errors_per_second, 10, 0.01);
  EXPECT_EQ(load.answers_per_second, 0);
  EXPECT_EQ(load.utilization, 0);
}

TEST(LoadMeterTest, TheFirstEventIsNoRate) {
  LoadMeter meter;
  meter.AddDeviceTime(kStart, absl::Milliseconds(100));
  meter.AddAnswer(kStart);
  EXPECT_NEAR(meter.Get(kStart, 0, 1).utilization, 0.1, 0.001);
  EXPECT_EQ(meter.Get(kStart, 0, 1).answers_per_second, 1);
}

TEST(LoadMeterTest, AClockThatIsSetBackGivesNoNonsense) {
  LoadMeter meter;
  RunLoad(&meter, kStart, 20, absl::Milliseconds(50));
  const ServerLoad load = meter.Get(kStart - absl::Hours(1), 10, 1);
  EXPECT_GE(load.utilization, 0);
  EXPECT_LE(load.utilization, 1);
}

}  // namespace
}  // namespace voxserve::load_meter_test
