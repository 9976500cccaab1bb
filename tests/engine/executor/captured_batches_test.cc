// Tests CapturedBatches, which decides whether a batch runs, is captured or is replayed. No GPU is needed.

#include "engine/executor/captured_batches.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace voxserve::captured_batches_test {
namespace {

using Way = CapturedBatches::Way;

BatchShape SomeShape() {
  return {.program = 1,
          .plans = 2,
          .plan = 0,
          .num_samples = 2,
          .ignore_label = 255,
          .capacities = {.sites = {1000, 500}, .axis_bits = {12, 12, 10, 1}, .points = 2000, .upload_bytes = 4096},
          .needed_steps = {true, true, false, true},
          .memory = {11, 12}};
}

TEST(BatchShapeTest, HasAKeyOfItsOwn) {
  EXPECT_EQ(KeyOf(SomeShape()), KeyOf(SomeShape()));
  std::vector<BatchShape> shapes(1, SomeShape());
  const auto add = [&](auto change) {
    shapes.push_back(SomeShape());
    change(shapes.back());
  };
  add([](BatchShape& shape) { shape.program = 3; });
  add([](BatchShape& shape) { shape.plans = 3; });
  add([](BatchShape& shape) { shape.plan = 1; });
  add([](BatchShape& shape) { shape.num_samples = 3; });
  add([](BatchShape& shape) { shape.ignore_label = 0; });
  add([](BatchShape& shape) { shape.max_voxels = 7; });
  add([](BatchShape& shape) { shape.voxel_order = 1; });
  add([](BatchShape& shape) { shape.capacities.sites[1] = 501; });
  add([](BatchShape& shape) { shape.capacities.sites.push_back(0); });
  add([](BatchShape& shape) { shape.capacities.axis_bits[0] = 13; });
  add([](BatchShape& shape) { shape.capacities.axis_bits[2] = 11; });
  add([](BatchShape& shape) { shape.capacities.points = 2001; });
  add([](BatchShape& shape) { shape.capacities.upload_bytes = 8192; });
  add([](BatchShape& shape) { shape.needed_steps[2] = true; });
  add([](BatchShape& shape) { shape.needed_steps.push_back(false); });
  add([](BatchShape& shape) { shape.needed_steps.resize(65, false); });
  add([](BatchShape& shape) {
    shape.needed_steps.resize(65, false);
    shape.needed_steps[64] = true;
  });
  add([](BatchShape& shape) { std::swap(shape.memory[0], shape.memory[1]); });
  add([](BatchShape& shape) { shape.memory[0] = 13; });
  add([](BatchShape& shape) { shape.memory.pop_back(); });
  std::set<BatchKey> keys;
  for (const BatchShape& shape : shapes) keys.insert(KeyOf(shape));
  EXPECT_EQ(keys.size(), shapes.size());
}

// Counts how many objects of this class exist.
class FakeWork final : public ReplayableWork {
 public:
  FakeWork(int64_t bytes, int& num_alive) : bytes_(bytes), num_alive_(num_alive) { ++num_alive_; }
  ~FakeWork() override { --num_alive_; }
  absl::Status Launch(StreamView) override { return absl::OkStatus(); }
  int64_t bytes() const override { return bytes_; }

 private:
  const int64_t bytes_;
  int& num_alive_;
};

class CapturedBatchesTest : public ::testing::Test {
 protected:
  CapturedBatch Captured(int64_t bytes = 100) {
    return {.work = std::make_unique<FakeWork>(bytes, num_alive_), .batch_bytes = 2 * bytes};
  }
  // Shows the shape as often as a capture requires, then keeps the captured work.
  bool Capture(CapturedBatches& batches, const BatchKey& key, int64_t bytes = 100) {
    EXPECT_EQ(batches.Choose(key), Way::kRun);
    EXPECT_EQ(batches.Choose(key), Way::kCapture);
    return batches.Keep(key, Captured(bytes));
  }

  int num_alive_ = 0;
};

TEST_F(CapturedBatchesTest, AShapeRunsThenIsCapturedThenReplayed) {
  CapturedBatches batches({});
  EXPECT_EQ(batches.Choose({1}), Way::kRun);
  EXPECT_EQ(batches.Choose({2}), Way::kRun);
  EXPECT_EQ(batches.Choose({1}), Way::kCapture);
  EXPECT_TRUE(batches.Keep({1}, Captured(300)));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(batches.Choose({1}), Way::kReplay);
    EXPECT_EQ(batches.Batch().work->bytes(), 300);
    EXPECT_EQ(batches.Batch().batch_bytes, 600);
  }
  EXPECT_EQ(batches.Choose({2}), Way::kCapture);
  EXPECT_EQ(batches.num_captured(), 1u);
}

// Memory may grow while a batch is captured. What was captured is then the work of another shape.
TEST_F(CapturedBatchesTest, WhatIsCapturedIsKeptUnderItsOwnKey) {
  CapturedBatches batches({});
  batches.Choose({1});
  EXPECT_EQ(batches.Choose({1}), Way::kCapture);
  EXPECT_TRUE(batches.Keep({2}, Captured(300)));
  EXPECT_EQ(batches.Choose({2}), Way::kReplay);
  EXPECT_EQ(batches.Batch().work->bytes(), 300);
  EXPECT_EQ(batches.Choose({1}), Way::kCapture);
  EXPECT_EQ(batches.num_captured(), 1u);
}

// A batch may fail after Choose, before anybody calls Keep or Decline. The next batch of this shape must be captured
// then.
TEST_F(CapturedBatchesTest, ACaptureThatCameToNothingIsTriedAgain) {
  CapturedBatches batches({});
  batches.Choose({1});
  EXPECT_EQ(batches.Choose({1}), Way::kCapture);
  EXPECT_EQ(batches.Choose({1}), Way::kCapture);
}

TEST_F(CapturedBatchesTest, AShapeThatCannotBeCapturedRestsForAWhile) {
  CapturedBatches batches({.num_resting = 3});
  batches.Choose({1});
  EXPECT_EQ(batches.Choose({1}), Way::kCapture);
  batches.Decline();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(batches.Choose({1}), Way::kRun) << i;
  EXPECT_EQ(batches.Choose({1}), Way::kCapture);
}

TEST_F(CapturedBatchesTest, TheLeastRecentlyUsedIsDropped) {
  CapturedBatches batches({.max_captured = 2});
  EXPECT_TRUE(Capture(batches, {1}));
  EXPECT_TRUE(Capture(batches, {2}));
  EXPECT_EQ(batches.Choose({1}), Way::kReplay);
  EXPECT_TRUE(Capture(batches, {3}));
  EXPECT_EQ(num_alive_, 2);
  EXPECT_EQ(batches.Choose({1}), Way::kReplay);
  EXPECT_EQ(batches.Choose({3}), Way::kReplay);
  EXPECT_EQ(batches.Choose({2}), Way::kRun);
}

// More shapes in turns than there may be graphs: capturing each of them again and again would cost more than it gains.
TEST_F(CapturedBatchesTest, AShapeWhoseGraphWasDroppedRestsForAWhile) {
  CapturedBatches batches({.max_captured = 2, .num_resting = 20});
  int num_captures = 0, num_replays = 0;
  for (int round = 0; round < 100; ++round) {
    for (uint64_t shape = 1; shape <= 3; ++shape) {
      const Way way = batches.Choose({shape});
      num_replays += way == Way::kReplay ? 1 : 0;
      if (way != Way::kCapture) continue;
      ++num_captures;
      EXPECT_TRUE(batches.Keep({shape}, Captured()));
    }
  }
  EXPECT_EQ(num_alive_, 2);
  EXPECT_LT(num_captures, 3 + 2 * 100 / 20);
  EXPECT_GT(num_replays, 150);
}

TEST_F(CapturedBatchesTest, ShapesThatComeOnceDropNoGraph) {
  CapturedBatches batches({.max_shapes = 8, .max_captured = 2});
  EXPECT_TRUE(Capture(batches, {1}));
  for (uint64_t other = 2; other < 200; ++other) EXPECT_EQ(batches.Choose({other}), Way::kRun);
  EXPECT_LE(batches.num_shapes(), 8u);
  EXPECT_EQ(num_alive_, 1);
  EXPECT_EQ(batches.Choose({1}), Way::kReplay);
}

TEST_F(CapturedBatchesTest, MemoryIsCountedWhileItIsHeld) {
  MemoryBudget budget(1000);
  {
    CapturedBatches batches({.budget = &budget});
    EXPECT_TRUE(Capture(batches, {1}, 300));
    EXPECT_TRUE(Capture(batches, {2}, 200));
    EXPECT_EQ(budget.held(MemoryBudget::Use::kScratch), 500);
    EXPECT_EQ(batches.bytes(), 500);
    batches.Clear();
    EXPECT_EQ(budget.held(), 0);
    EXPECT_EQ(num_alive_, 0);
    EXPECT_TRUE(Capture(batches, {1}, 300));
  }
  EXPECT_EQ(budget.held(), 0);
}

TEST_F(CapturedBatchesTest, OlderGraphsGiveWayWhereTheBudgetRefuses) {
  MemoryBudget budget(1000);
  CapturedBatches batches({.budget = &budget});
  EXPECT_TRUE(Capture(batches, {1}, 400));
  EXPECT_TRUE(Capture(batches, {2}, 400));
  EXPECT_TRUE(Capture(batches, {3}, 500));
  EXPECT_EQ(budget.held(), 900);
  EXPECT_EQ(batches.Choose({2}), Way::kReplay);
  EXPECT_EQ(batches.Choose({1}), Way::kRun);
}

TEST_F(CapturedBatchesTest, GraphsThatWouldNotSufficeDoNotGiveWay) {
  MemoryBudget budget(1000);
  CapturedBatches batches({.budget = &budget});
  EXPECT_TRUE(Capture(batches, {1}, 100));
  EXPECT_TRUE(Capture(batches, {2}, 100));
  EXPECT_FALSE(Capture(batches, {3}, 1100));
  EXPECT_EQ(batches.Choose({1}), Way::kReplay);
  EXPECT_EQ(batches.Choose({2}), Way::kReplay);
}

TEST_F(CapturedBatchesTest, WhatTheBudgetHasNoRoomForRunsAsItIs) {
  MemoryBudget budget(1000);
  const auto others = budget.Reserve(MemoryBudget::Use::kModels, 800);
  ASSERT_TRUE(others.ok()) << others.status();
  CapturedBatches batches({.num_resting = 2, .budget = &budget});
  EXPECT_FALSE(Capture(batches, {1}, 300));
  EXPECT_EQ(num_alive_, 0);
  EXPECT_EQ(budget.held(MemoryBudget::Use::kScratch), 0);
  EXPECT_EQ(batches.Choose({1}), Way::kRun);
  EXPECT_EQ(batches.Choose({1}), Way::kRun);
  EXPECT_EQ(batches.Choose({1}), Way::kCapture) << "there may be room by now";
}

}  // namespace
}  // namespace voxserve::captured_batches_test
