// Tests overload and recovery of the batcher in simulated time. A batch of one scan takes 4.2 ms, a batch of four 13.6
// ms.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "tests/engine/serving/admission/serving_simulation.h"

namespace voxserve::overload_test {
namespace {

// The devices and streams, and how much streams gain by running side by side.
struct Machine {
  const char* name;
  int num_devices;
  int streams_per_device;
  double overlap_gain;
  double size_spread;
};

class OverloadTest : public testing::TestWithParam<Machine> {
 protected:
  ServingSimulation::Options Options(uint64_t seed) const {
    return {.num_devices = GetParam().num_devices,
            .streams_per_device = GetParam().streams_per_device,
            .overlap_gain = GetParam().overlap_gain,
            .seed = seed};
  }
  // Returns the requests per second that a machine answers if every batch is full. All tests of a machine share the
  // result.
  double Capacity() const {
    static auto* const capacities = new std::map<std::string, double>;
    double& capacity = (*capacities)[GetParam().name];
    if (capacity == 0) {
      ServingSimulation simulation(Options(99));
      simulation.Seed();
      capacity = simulation.RunClosed(40 * GetParam().num_devices, absl::Seconds(3)).goodput();
    }
    return capacity;
  }
  ServingSimulation::Traffic Load(double rate) const { return {.rate = rate, .size_spread = GetParam().size_spread}; }
};

TEST_P(OverloadTest, WhoIsAdmittedMeetsTheDeadlineAndGoodputStaysAtCapacity) {
  const double capacity = Capacity();
  for (const double overload : {1.2, 2.0, 4.0}) {
    for (const uint64_t seed : {1, 2}) {
      ServingSimulation simulation(Options(seed));
      simulation.Seed();
      const auto counts = simulation.Run(Load(overload * capacity), absl::Seconds(4));
      SCOPED_TRACE(absl::StrCat(overload, " times the capacity of ", capacity, ": ", counts.ToString()));
      EXPECT_GE(counts.met_share(), 0.99);
      EXPECT_GE(counts.goodput(), 0.9 * capacity * (overload < 1.5 ? 0.98 : 1));
      EXPECT_GT(counts.refused, 0);
    }
  }
}

TEST_P(OverloadTest, UnseededItLearnsOnTheWay) {
  const double capacity = Capacity();
  ServingSimulation simulation(Options(4));
  const auto counts = simulation.Run(Load(2 * capacity), absl::Seconds(4));
  EXPECT_GE(counts.met_share(), 0.99) << counts.ToString();
  EXPECT_GE(counts.goodput(), 0.9 * capacity) << counts.ToString();
}

TEST_P(OverloadTest, ServiceIsBackWithinASecond) {
  const double capacity = Capacity();
  ServingSimulation simulation(Options(5));
  simulation.Seed();
  simulation.Run(Load(2 * capacity), absl::Seconds(3));
  simulation.Run(Load(0.3 * capacity), absl::Milliseconds(200));  // the queue empties
  const auto counts = simulation.Run(Load(0.3 * capacity), absl::Milliseconds(800));
  EXPECT_EQ(counts.refused + counts.dropped + counts.late, 0) << counts.ToString();
}

TEST_P(OverloadTest, ASpellOfPredictionsThatAreTooHighIsOverWithinASecond) {
  const double capacity = Capacity();
  for (const double rate : {0.3, 2.0}) {
    ServingSimulation simulation(Options(6));
    simulation.Seed();
    // Under overload, every batch takes 10 times as long for three seconds.
    simulation.SetSlowdown(10);
    simulation.Run(Load(2 * capacity), absl::Seconds(3));
    simulation.SetSlowdown(1);
    simulation.Run(Load(rate * capacity), absl::Milliseconds(700));
    const auto counts = simulation.Run(Load(rate * capacity), absl::Seconds(2));
    EXPECT_GE(counts.met_share(), 0.99) << counts.ToString();
    EXPECT_GE(counts.goodput(), std::min(rate, 0.9) * capacity * 0.85) << counts.ToString();
    if (rate < 1) {
      EXPECT_EQ(counts.refused, 0) << counts.ToString();
    }
  }
}

TEST_P(OverloadTest, PredictionsTenTimesTooHighCorrectThemselves) {
  const double capacity = Capacity();
  ServingSimulation simulation(Options(7));
  simulation.Seed();
  for (int device = 0; device < GetParam().num_devices; ++device) {
    for (int i = 0; i < 40; ++i) {
      simulation.latency(static_cast<size_t>(device))
          .Observe({.points = ServingSimulation::kPoints, .voxels = ServingSimulation::kPoints * 3 / 4, .requests = 1},
                   absl::Milliseconds(42));
    }
  }
  simulation.Run(Load(2 * capacity), absl::Milliseconds(500));
  const auto counts = simulation.Run(Load(2 * capacity), absl::Milliseconds(500));
  EXPECT_GE(counts.goodput(), 0.9 * capacity) << counts.ToString();
  EXPECT_GE(counts.met_share(), 0.99) << counts.ToString();
}

TEST_P(OverloadTest, HiccupsDoNotKeepEverybodyOut) {
  const double capacity = Capacity();
  ServingSimulation::Options options = Options(8);
  options.hiccup_probability = 0.01;
  ServingSimulation simulation(options);
  simulation.Seed();
  const auto counts = simulation.Run(Load(2 * capacity), absl::Seconds(6));
  EXPECT_GE(counts.goodput(), 0.88 * capacity) << counts.ToString();
  EXPECT_GE(counts.met_share(), 0.94) << counts.ToString();
}

TEST_P(OverloadTest, ASingleClientNeverWaits) {
  ServingSimulation simulation(Options(9));
  simulation.Seed();
  const auto counts = simulation.RunClosed(1, absl::Seconds(2));
  EXPECT_EQ(counts.longest_wait, absl::ZeroDuration());
  EXPECT_EQ(counts.refused, 0);
  EXPECT_GT(counts.met, 400);
}

INSTANTIATE_TEST_SUITE_P(Machines, OverloadTest,
                         testing::Values(Machine{"OneStream", 1, 1, 1, 0}, Machine{"TwoStreams", 1, 2, 1, 0},
                                         Machine{"TwoStreamsThatOverlap", 1, 2, 1.15, 0.3},
                                         Machine{"TwoDevices", 2, 1, 1, 0.2}, Machine{"FourByTwo", 4, 2, 1.1, 0.3}),
                         [](const auto& machine) { return std::string(machine.param.name); });

}  // namespace
}  // namespace voxserve::overload_test
