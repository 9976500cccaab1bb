// Tests that answers do not depend on where a cloud's bytes are: in page-locked memory, in pageable memory, or in both
// within one batch.

#include "tests/engine/pinned_clouds.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/program_fixture.h"
#include "tests/support/minkunet.h"

namespace voxserve::pinned_clouds_test {
namespace {

PointCloud Street(int64_t num_points, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> unit(-1, 1);
  std::vector<float> points;
  for (int64_t i = 0; i < num_points; ++i) {
    points.insert(points.end(), {12 * unit(random), 12 * unit(random), 1.5f * unit(random), 0.5f * unit(random)});
  }
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, points.data(), static_cast<uint64_t>(num_points));
}

class PinnedCloudsTest : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    if (runner_ == nullptr) return;
    const auto graph = support::LoadNetwork(support::MinkUNet(
        {.width = 0.25, .num_classes = 7, .features = {"x", "y", "z", "intensity"}, .voxel_size_m = 0.4f}));
    ASSERT_TRUE(graph.ok()) << graph.status();
    Compile(*graph, /*is_deterministic=*/true);
    clouds_ = std::make_unique<PinnedClouds>(GetParam());
  }

  BatchReport Run(const std::vector<InferTask>& tasks) {
    BatchReport output = runner_->Run(program_, tasks);
    EXPECT_TRUE(output.status.ok()) << output.status;
    return output;
  }
  static InferTask TaskOf(PointCloud cloud) { return {.cloud = std::move(cloud), .return_scores = true}; }
  static void ExpectSame(const InferResult& result, const InferResult& expected) {
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.labels(), expected.labels());
    EXPECT_EQ(result.scores(), expected.scores());
    EXPECT_EQ(result.counts.used, expected.counts.used);
    EXPECT_EQ(result.counts.voxels, expected.counts.voxels);
  }

  std::unique_ptr<PinnedClouds> clouds_;
};
INSTANTIATE_TEST_SUITE_P(Devices, PinnedCloudsTest, support::AllDevices(), support::DeviceName);

TEST_P(PinnedCloudsTest, AloneAndBesideOrdinaryOnes) {
  const PointCloud street = Street(5000, 1), other = Street(6001, 2), small = Street(10, 3), none = Street(0, 4);
  const std::vector<PointCloud> ordinary = {street, other, small, none, street};
  const BatchReport expected = Run({TaskOf(street), TaskOf(other), TaskOf(small), TaskOf(none), TaskOf(street)});
  ASSERT_EQ(expected.samples.size(), ordinary.size());
  ExpectSame(Run({TaskOf(clouds_->Copy(street))}).samples.at(0), expected.samples[0]);
  for (int pinned = 0; pinned < 8; ++pinned) {
    SCOPED_TRACE(pinned);
    std::vector<InferTask> tasks;
    for (const PointCloud& cloud : ordinary) tasks.push_back(TaskOf(cloud));
    if (pinned & 1) tasks[0].cloud = clouds_->Copy(street);
    if (pinned & 2) tasks[1].cloud = clouds_->Copy(other);
    if (pinned & 4) tasks[4].cloud = clouds_->Copy(street);
    const BatchReport output = Run(tasks);
    ASSERT_EQ(output.samples.size(), ordinary.size());
    for (size_t i = 0; i < ordinary.size(); ++i) ExpectSame(output.samples[i], expected.samples[i]);
  }
}

// Ordinary clouds of this size are staged in many pieces and sent in several transfers, pinned ones in one each.
TEST_P(PinnedCloudsTest, LargeOnesBesideOrdinaryOnes) {
  const std::vector<PointCloud> streets = {Street(40'000, 1), Street(5000, 2), Street(25'001, 3), Street(33'333, 4)};
  std::vector<InferTask> tasks;
  for (const PointCloud& street : streets) tasks.push_back(TaskOf(clouds_->Copy(street)));
  const BatchReport expected = Run(tasks);
  ASSERT_EQ(expected.samples.size(), streets.size());
  for (const std::vector<size_t>& ordinary : std::vector<std::vector<size_t>>{{0, 1, 2, 3}, {0, 2}, {1, 3}, {3}}) {
    for (const size_t i : ordinary) tasks[i] = TaskOf(streets[i]);
    const BatchReport output = Run(tasks);
    ASSERT_EQ(output.samples.size(), streets.size());
    for (size_t i = 0; i < streets.size(); ++i) ExpectSame(output.samples[i], expected.samples[i]);
    for (const size_t i : ordinary) tasks[i] = TaskOf(clouds_->Copy(streets[i]));
  }
}

// After a batch has ended, the cloud of the next batch may use the same memory.
TEST_P(PinnedCloudsTest, OneBufferServesBatchAfterBatch) {
  const std::vector<PointCloud> streets = {Street(5000, 1), Street(5100, 2), Street(4900, 3)};
  std::vector<InferResult> expected;
  for (const PointCloud& street : streets) expected.push_back(Run({TaskOf(street)}).samples.at(0));
  int64_t pinned_bytes = 0;
  for (size_t i = 0; i < 12; ++i) {
    ExpectSame(Run({TaskOf(clouds_->Copy(streets[i % 3]))}).samples.at(0), expected[i % 3]);
    if (i == 0) pinned_bytes = clouds_->pool().pinned_bytes();
  }
  EXPECT_EQ(clouds_->pool().pinned_bytes(), pinned_bytes);
}

TEST_P(PinnedCloudsTest, SweepsWithAndWithoutRoomOnTheDevice) {
  std::vector<PointCloud> streets = {Street(5000, 1), Street(5100, 2), Street(4900, 3)};
  const auto task_of = [&](bool is_pinned) {
    InferTask task{.return_scores = true};
    for (size_t i = 0; i < streets.size(); ++i) {
      // The last cloud stays in pageable memory.
      PointCloud cloud = is_pinned && i < 2 ? clouds_->Copy(streets[i]) : streets[i];
      task.sweeps.push_back({.sweep = std::make_shared<const Sweep>(Sweep{.cloud = std::move(cloud)})});
      task.sweeps.back().transform[3] = 0.25f * static_cast<float>(i);
    }
    task.cloud = task.sweeps.front().sweep->cloud;
    return task;
  };
  const InferResult expected = Run({task_of(false)}).samples.at(0);
  const auto expect_same = [&] {
    const InferTask task = task_of(true);
    // In the second run, a GPU may still have the copies of the first run.
    for (int time = 0; time < 2; ++time) ExpectSame(Run({task}).samples.at(0), expected);
    // Samples share sweeps.
    const BatchReport both = Run({task, task});
    for (const InferResult& sample : both.samples) ExpectSame(sample, expected);
  };
  expect_same();
  if constexpr (kernels::kHasCuda) {
    if (GetParam() == support::Device::kCpu) return;
    CudaContext& cuda = *runner_->context().cuda;
    DeviceCopies* const copies = std::exchange(cuda.copies, nullptr);
    expect_same();
    const auto without_room = DeviceCopies::Create(cuda.pool, 0);
    ASSERT_TRUE(without_room.ok()) << without_room.status();
    cuda.copies = without_room->get();
    expect_same();
    cuda.copies = copies;
  }
}

TEST_P(PinnedCloudsTest, AGpuStagesOrdinaryOnesAlone) {
  if (GetParam() == support::Device::kCpu) GTEST_SKIP() << "a CPU stages none";
  if constexpr (kernels::kHasCuda) {
    const PinnedBuffer& staging = runner_->context().cuda->upload;
    const PointCloud street = Street(300'000, 1);
    const auto num_bytes = static_cast<int64_t>(street.bytes().size());
    Run({TaskOf(clouds_->Copy(street)), TaskOf(clouds_->Copy(street))});
    EXPECT_LT(staging.capacity(), num_bytes) << "the bytes went from where they lay";
    Run({TaskOf(clouds_->Copy(street)), TaskOf(street)});
    EXPECT_GE(staging.capacity(), num_bytes);
    EXPECT_LT(staging.capacity(), 2 * num_bytes);
  }
}

}  // namespace
}  // namespace voxserve::pinned_clouds_test
