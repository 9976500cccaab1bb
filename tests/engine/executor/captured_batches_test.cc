// Tests which steps of a program are captured as CUDA graphs (CapturableRanges), and CapturedBatches, which decides
// whether a batch runs, is captured or is replayed. No GPU is needed.

#include "engine/executor/captured_batches.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/engine/device_runner.h"
#include "tests/engine/executor/expected_scores.h"
#include "tests/engine/executor/operator_networks.h"
#include "tests/support/minkunet.h"

namespace voxserve {
namespace {

using Way = CapturedBatches::Way;

constexpr size_t kNoBorder = 1000;
constexpr StepUse kYes{.is_needed = true, .is_capturable = true};
constexpr StepUse kNo{.is_needed = true, .is_capturable = false};
constexpr StepUse kSkipped{.is_needed = false, .is_capturable = false};

std::vector<StepRange> Ranges(const std::vector<StepUse>& steps, size_t border = kNoBorder) {
  return CapturableRanges(steps, border);
}

TEST(CapturableRangesTest, AreTheLongest) {
  EXPECT_EQ(Ranges({kYes, kYes, kYes}), (std::vector<StepRange>{{0, 3}}));
  EXPECT_EQ(Ranges({kNo, kYes, kYes, kNo}), (std::vector<StepRange>{{1, 3}}));
  EXPECT_EQ(Ranges({kYes, kYes, kNo, kYes, kYes, kYes}), (std::vector<StepRange>{{0, 2}, {3, 6}}));
  EXPECT_TRUE(Ranges({}).empty());
  EXPECT_TRUE(Ranges({kNo, kNo}).empty());
}

TEST(CapturableRangesTest, OneStepIsNotWorthAGraph) {
  EXPECT_TRUE(Ranges({kYes, kNo, kYes}).empty());
  EXPECT_TRUE(Ranges({kYes, kSkipped}).empty());
}

TEST(CapturableRangesTest, WhatNobodyNeedsDoesNotPartThem) {
  EXPECT_EQ(Ranges({kSkipped, kYes, kSkipped, kYes, kSkipped}), (std::vector<StepRange>{{1, 4}}));
}

TEST(CapturableRangesTest, EndAtTheBorder) {
  EXPECT_EQ(Ranges({kYes, kYes, kYes, kYes}, 2), (std::vector<StepRange>{{0, 2}, {2, 4}}));
  EXPECT_EQ(Ranges({kYes, kYes, kYes}, 2), (std::vector<StepRange>{{0, 2}}));
  EXPECT_EQ(Ranges({kYes, kYes, kSkipped, kYes, kYes}, 2), (std::vector<StepRange>{{0, 2}, {3, 5}}));
}

// Returns the ranges of steps that are captured if a batch asks only for labels or boxes.
std::vector<StepRange> RangesOf(const Program& program, size_t* num_steps, size_t* num_captured) {
  std::vector<StepUse> steps;
  for (const std::unique_ptr<Step>& step : program.steps) {
    steps.push_back({.is_needed = step->is_for_all, .is_capturable = step->IsCapturable(program.buffers)});
    *num_steps += step->is_for_all ? 1 : 0;
  }
  std::vector<StepRange> ranges = CapturableRanges(steps, static_cast<size_t>(program.first_head_step));
  for (const StepRange& range : ranges) {
    for (size_t i = range.begin; i < range.end; ++i) *num_captured += steps[i].is_needed ? 1 : 0;
  }
  return ranges;
}

// The captured steps begin with the first step, which computes the voxels' features. Only the steps at the end, which
// make the points' labels, are not captured.
TEST(CapturableRangesTest, OfMinkUNetAreItsFeatures) {
  auto runner = DeviceRunner::Create({});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto graph = support::LoadNetwork(support::MinkUNet({.width = 0.25}));
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto program = (*runner)->Compile(*graph, {});
  ASSERT_TRUE(program.ok()) << program.status();
  size_t num_steps = 0, num_captured = 0;
  const std::vector<StepRange> ranges = RangesOf(*program, &num_steps, &num_captured);
  ASSERT_EQ(ranges.size(), 1u);
  EXPECT_EQ(ranges[0].begin, 0u);
  EXPECT_GT(num_captured, 42u);
  EXPECT_LE(num_steps - num_captured, 2u);
}

// A step with a row for each point depends on the number of points, so it is not captured.
TEST(CapturableRangesTest, HaveNoStepsOfPoints) {
  auto runner = DeviceRunner::Create({});
  ASSERT_TRUE(runner.ok()) << runner.status();
  int num_of_points = 0;
  for (const OperatorNetwork& network : OperatorNetworks()) {
    SCOPED_TRACE(network.name);
    const auto graph = LoadTestGraph(network.model);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto program = (*runner)->Compile(*graph, {});
    ASSERT_TRUE(program.ok()) << program.status();
    for (const Buffer& buffer : program->buffers) {
      if (buffer.level != kPointLevel) continue;
      // These are the step that makes the rows, and the last step that reads them.
      for (const int step : {buffer.first_step, buffer.last_step}) {
        EXPECT_FALSE(program->steps[static_cast<size_t>(step)]->IsCapturable(program->buffers)) << step;
        ++num_of_points;
      }
    }
    size_t num_steps = 0, num_captured = 0;
    RangesOf(*program, &num_steps, &num_captured);
    EXPECT_LT(num_captured, num_steps) << "answers are not captured";
  }
  EXPECT_GT(num_of_points, 10);
}

BatchShape SomeShape() {
  static const int kPlaces[2] = {};
  return {.program = 1,
          .plans = 2,
          .plan = 0,
          .num_samples = 2,
          .ignore_label = 255,
          .capacities = {1000, 500},
          .needed_steps = {true, true, false, true},
          .addresses = {&kPlaces[0], nullptr}};
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
  add([](BatchShape& shape) { shape.capacities[1] = 501; });
  add([](BatchShape& shape) { shape.capacities.push_back(0); });
  add([](BatchShape& shape) { shape.needed_steps[2] = true; });
  add([](BatchShape& shape) { shape.needed_steps.push_back(false); });
  add([](BatchShape& shape) { shape.needed_steps.resize(65, false); });
  add([](BatchShape& shape) {
    shape.needed_steps.resize(65, false);
    shape.needed_steps[64] = true;
  });
  add([](BatchShape& shape) { std::swap(shape.addresses[0], shape.addresses[1]); });
  add([](BatchShape& shape) { shape.addresses.pop_back(); });
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
  std::vector<CapturedPart> Parts(int64_t bytes = 100, size_t first_step = 0) {
    std::vector<CapturedPart> parts;
    parts.push_back({.steps = {first_step, first_step + 2}, .work = std::make_unique<FakeWork>(bytes, num_alive_)});
    return parts;
  }
  // Shows the shape as often as a capture requires, then keeps the captured work.
  bool Capture(CapturedBatches& batches, const BatchKey& key, int64_t bytes = 100) {
    EXPECT_EQ(batches.Choose(key), Way::kRun);
    EXPECT_EQ(batches.Choose(key), Way::kCapture);
    return batches.Keep(Parts(bytes));
  }

  int num_alive_ = 0;
};

TEST_F(CapturedBatchesTest, AShapeRunsThenIsCapturedThenReplayed) {
  CapturedBatches batches({});
  EXPECT_EQ(batches.Choose({1}), Way::kRun);
  EXPECT_EQ(batches.Choose({2}), Way::kRun);
  EXPECT_EQ(batches.Choose({1}), Way::kCapture);
  EXPECT_TRUE(batches.Keep(Parts(100, 7)));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(batches.Choose({1}), Way::kReplay);
    ASSERT_EQ(batches.Parts().size(), 1u);
    EXPECT_EQ(batches.Parts()[0].steps, (StepRange{7, 9}));
  }
  EXPECT_EQ(batches.Choose({2}), Way::kCapture);
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
  EXPECT_EQ(batches.Choose({2}), Way::kRun) << "it is forgotten";
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
}  // namespace voxserve
