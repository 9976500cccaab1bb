// Tests GPU batches that run in rooms: the executor lays out their memory by capacities that earlier batches suggest
// (engine/geometry/site_rooms.h), before it knows the batch's sizes. The results must have the same bytes as when the
// host waits for the sizes. A batch that does not fit its rooms runs again.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/executor/cuda_executor.h"
#include "tests/engine/executor/same_bytes.h"
#include "tests/engine/executor/small_minkunet_fixture.h"

namespace voxserve {
namespace {

class SiteRoomsTest : public SmallMinkUNetTest {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(support::Device::kCuda);
    Start(/*budget_bytes=*/0);
  }

  BatchOutput Run(const std::vector<const PointCloud*>& clouds, const RunLimits& limits = {}) {
    return runner_->Run(program_, clouds, /*return_scores=*/true, limits);
  }
  // Runs the batch without rooms: if convolutions are timed, the host waits for the batch's sizes.
  BatchOutput RunWithSizes(const std::vector<const PointCloud*>& clouds, const RunLimits& limits = {}) {
    BatchOutput output = runner_->Run(program_, clouds, /*return_scores=*/true, limits, {.times_convs = true});
    EXPECT_FALSE(RanInRooms());
    return output;
  }
  // Returns true if the last batch ran in rooms, and false if the host waited for its sizes.
  bool RanInRooms() const { return static_cast<const CudaExecutor&>(runner_->executor()).geometry().has_rooms(); }
};

TEST_F(SiteRoomsTest, ABatchThatDoesNotFitRunsAgain) {
  const PointCloud dense = BoxOfPoints(5000, 1, 1), scattered = BoxOfPoints(5000, 40, 2);
  EXPECT_FALSE(Run({&dense}).ran_again);
  EXPECT_FALSE(RanInRooms()) << "nothing is known of the first";
  const BatchOutput in_rooms = Run({&dense});
  EXPECT_TRUE(RanInRooms());
  EXPECT_FALSE(in_rooms.ran_again);
  const BatchOutput overflown = Run({&scattered});
  EXPECT_TRUE(overflown.ran_again);
  EXPECT_FALSE(RanInRooms());
  const BatchOutput again = Run({&scattered});
  EXPECT_TRUE(RanInRooms());
  EXPECT_FALSE(again.ran_again);
  ExpectSameBytes(in_rooms, RunWithSizes({&dense}));
  const BatchOutput expected = RunWithSizes({&scattered});
  ASSERT_GT(expected.samples[0].counts.voxels, 4 * in_rooms.samples[0].counts.voxels);
  ExpectSameBytes(overflown, expected);
  ExpectSameBytes(again, expected);
}

TEST_F(SiteRoomsTest, BatchesOfAllDensitiesAreWhatTheyAreWithSizes) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> size(1, 4);
  std::uniform_real_distribution<double> log_points(0, 4.3), log_metres(-0.5, 2);
  int num_again = 0, num_in_rooms = 0;
  for (uint32_t batch = 0; batch < 120; ++batch) {
    SCOPED_TRACE(batch);
    const double metres = std::pow(10, log_metres(random));
    std::vector<PointCloud> clouds;
    for (int64_t i = size(random); i > 0; --i) {
      const auto num_points = static_cast<int64_t>(std::pow(10, log_points(random)));
      clouds.push_back(BoxOfPoints(num_points, static_cast<float>(metres), 10 * batch + static_cast<uint32_t>(i)));
    }
    std::vector<const PointCloud*> together;
    for (const PointCloud& cloud : clouds) together.push_back(&cloud);
    const BatchOutput output = Run(together);
    num_again += output.ran_again ? 1 : 0;
    num_in_rooms += RanInRooms() ? 1 : 0;
    ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(output, RunWithSizes(together)));
  }
  EXPECT_GT(num_again, 3);
  EXPECT_GT(num_in_rooms, 40);
}

TEST_F(SiteRoomsTest, SamplesAndBatchesBeyondLimitsAreRefusedAlike) {
  const PointCloud few = BoxOfPoints(2000, 2, 1), many = BoxOfPoints(2000, 30, 2);
  EXPECT_TRUE(Run({&few, &many}).status.ok());
  const RunLimits samples{.max_voxels = 1000};
  const BatchOutput refused = Run({&few, &many}, samples);
  EXPECT_TRUE(RanInRooms());
  EXPECT_TRUE(refused.samples[0].status.ok()) << refused.samples[0].status;
  EXPECT_TRUE(absl::IsInvalidArgument(refused.samples[1].status)) << refused.samples[1].status;
  ExpectSameBytes(refused, RunWithSizes({&few, &many}, samples));
  const BatchOutput only = Run({&many}, samples);
  EXPECT_FALSE(only.samples[0].status.ok());
  ExpectSameBytes(only, RunWithSizes({&many}, samples));
  // The capacity for voxels is clamped to the limit. A batch with exactly as many voxels as the limit still runs in
  // rooms.
  const auto voxels = static_cast<int64_t>(RunWithSizes({&few, &many}).samples[0].counts.voxels +
                                           RunWithSizes({&few, &many}).samples[1].counts.voxels);
  EXPECT_TRUE(Run({&few, &many}, {.max_batch_voxels = voxels}).status.ok());
  EXPECT_TRUE(RanInRooms());
  const RunLimits batches{.max_batch_voxels = 1000};
  const BatchOutput too_large = Run({&few, &many}, batches);
  EXPECT_TRUE(absl::IsOutOfRange(too_large.status)) << too_large.status;
  EXPECT_TRUE(Run({&few, &many}).status.ok()) << "and the next one is served";
}

// The far clouds have about as many sites as the near one, but their coordinates on one axis need more bits than
// SiteRooms::axis_bits.
TEST_F(SiteRoomsTest, ABatchThatReachesFartherRunsAgain) {
  const PointCloud near = BoxOfPoints(4000, 15, 1);
  for (const size_t axis : {2, 0}) {
    SCOPED_TRACE(axis);
    std::vector<float> values;
    for (const float shift : {0.0f, 3000.0f}) {
      std::mt19937 random(1);
      std::uniform_real_distribution<float> unit(-0.5f, 0.5f);
      for (int i = 0; i < 2000; ++i) {
        values.insert(values.end(), {12 * unit(random), 12 * unit(random), 1.5f * unit(random), unit(random)});
        values[values.size() - 4 + axis] += shift;
      }
    }
    const PointCloud far = *PointCloud::FromFloats({"x", "y", "z", "intensity"}, values.data(), values.size() / 4);
    Run({&near});
    Run({&near});
    ASSERT_TRUE(RanInRooms());
    const BatchOutput again = Run({&far});
    EXPECT_TRUE(again.ran_again);
    const BatchOutput in_rooms = Run({&far});
    EXPECT_FALSE(in_rooms.ran_again);
    EXPECT_TRUE(RanInRooms());
    ExpectSameBytes(again, RunWithSizes({&far}));
    ExpectSameBytes(in_rooms, again);
  }
}

// One plan is for few voxels and one for many. Both clouds have the same number of points, but their numbers of voxels
// need different plans.
TEST_F(SiteRoomsTest, BatchesOnBothSidesOfAPlansBorderWaitForTheirSizes) {
  const PointCloud dense = BoxOfPoints(5000, 4, 1), scattered = BoxOfPoints(5000, 30, 2);
  const int64_t few = RunWithSizes({&dense}).samples[0].counts.voxels;
  const int64_t many = RunWithSizes({&scattered}).samples[0].counts.voxels;
  ASSERT_LT(2 * few, many);
  const int64_t border = (few + many) / 2;
  const Plan plan = {.fallback = program_.default_plans.ForVoxels(0)[0]};
  const PlanTable plans(program_, {{.max_voxels = border, .plan = plan}, {.min_voxels = border, .plan = plan}});
  const auto run = [&](const PointCloud& cloud) {
    return runner_->Run(program_, {&cloud}, /*return_scores=*/true, {}, {.plans = &plans});
  };
  int num_again = 0;
  for (int i = 0; i < 10; ++i) {
    for (const PointCloud* const cloud : {&dense, &scattered}) {
      const BatchOutput output = run(*cloud);
      num_again += output.ran_again ? 1 : 0;
      ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(output, RunWithSizes({cloud})));
    }
  }
  EXPECT_LE(num_again, 1);
}

}  // namespace
}  // namespace voxserve
