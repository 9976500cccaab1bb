// Tests that a worker runs a batch whole, or in parts if the batch exceeds the limit of voxels or the device's memory.

#include "engine/serving/worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/serving/admission/engine_observer.h"
#include "engine/serving/models/model_builder.h"
#include "tests/engine/golden_scan.h"
#include "tests/support/test_device.h"

namespace voxserve::worker_test {
namespace {

using testing::ElementsAre;

struct BatchRun {
  int64_t requests = 0;
  int64_t voxels = 0;
};

// The worker's thread calls this; the test reads `batches` when the worker has ended.
class BatchObserver final : public EngineObserver {
 public:
  void OnBatch(std::string_view, int64_t requests, int64_t, int64_t voxels) override {
    batches.push_back({requests, voxels});
  }
  std::vector<BatchRun> batches;
};

class WorkerTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
  void TearDown() override { model_.reset(); }  // the model goes before its device

  // memory_limit limits the GPU's memory, or the host's memory for a CPU. 0: no limit.
  void Start(int64_t memory_limit, int64_t max_batch_voxels) {
    model_.reset();
    devices_.clear();
    const bool is_cpu = GetParam() == support::Device::kCpu;
    budget_ = std::make_unique<MemoryBudget>(is_cpu ? memory_limit : 0);
    devices_ = *OpenDevices(is_cpu ? "cpu" : "cuda:0", memory_limit, budget_.get());
    absl::StatusOr<LoadedModel> loaded = LoadMinkUNetModel();
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    loaded->config.batching.max_batch_points = 1'000'000'000;
    loaded->config.batching.max_batch_voxels = max_batch_voxels;
    const ModelBuilder builder({.devices = &devices_, .max_grid_bytes = 0});
    auto model = builder.Make("minkunet", 1, *loaded);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  // Queues one task for each cloud before the worker starts.
  std::vector<absl::StatusOr<InferResult>> Run(const std::vector<PointCloud>& clouds) {
    observer_.batches.clear();
    std::vector<absl::StatusOr<InferResult>> results(clouds.size(), absl::UnknownError("no answer"));
    Batcher batcher({.max_queue_requests = 100, .max_queue_bytes = int64_t{1} << 32});
    for (size_t i = 0; i < clouds.size(); ++i) {
      QueuedTask task{.ticket = i, .model = model_};
      task.task.cloud = clouds[i];
      task.task.done = [&results, i](absl::StatusOr<InferResult> result) { results[i] = std::move(result); };
      EXPECT_TRUE(batcher.Push(task).ok());
    }
    batcher.Stop();
    kernels::ThreadPool pool(2);
    DeviceArbiter arbiter;
    std::atomic<int> num_working_workers{1};
    absl::StatusOr<ExecutionContext> context = MakeContext(devices_[0], &pool);
    EXPECT_TRUE(context.ok()) << context.status();
    if (!context.ok()) return results;
    arbiter.Add(context->cuda.get());
    batch_bytes_ = 0;
    const Worker worker({.batcher = &batcher,
                         .observer = &observer_,
                         .num_working_workers = &num_working_workers,
                         .batch_bytes = &batch_bytes_,
                         .arbiter = &arbiter,
                         .memory_age = memory_age_},
                        *std::move(context));
    batcher.WaitUntilIdle();
    return results;
  }
  absl::StatusOr<InferResult> Run(const PointCloud& cloud) { return Run(std::vector<PointCloud>{cloud}).front(); }

  std::vector<int64_t> RequestsOfBatches() const {
    std::vector<int64_t> requests;
    for (const BatchRun& batch : observer_.batches) requests.push_back(batch.requests);
    return requests;
  }

  std::unique_ptr<MemoryBudget> budget_;
  std::vector<Device> devices_;
  std::shared_ptr<ServedModel> model_;
  BatchObserver observer_;
  std::atomic<int64_t> batch_bytes_{0};
  absl::Duration memory_age_ = absl::Minutes(1);
};

INSTANTIATE_TEST_SUITE_P(Devices, WorkerTest, support::AllDevices(), support::DeviceName);

// Returns this many points in a row, each in its own voxel.
PointCloud Row(int num_points) {
  std::vector<float> values;
  for (int i = 0; i < num_points; ++i) values.insert(values.end(), {static_cast<float>(i), 0, 0, 0.5f});
  return *PointCloud::FromFloats({"x", "y", "z", "intensity"}, values.data(), static_cast<uint64_t>(num_points));
}

TEST_P(WorkerTest, ABatchOfMoreVoxelsThanEstimatedIsRunInParts) {
  Start(0, 10);
  LatencyFit& latency = *model_->on_device[0].latency;
  latency.ObserveVoxels(1000, 100);
  const auto results = Run(std::vector<PointCloud>(4, Row(5)));
  // For the batch, 2 voxels were expected, and there are 20.
  EXPECT_THAT(RequestsOfBatches(), ElementsAre(2, 2));
  for (const BatchRun& batch : observer_.batches) EXPECT_EQ(batch.voxels, 10);
  for (const auto& result : results) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->labels().size(), 5u);
    EXPECT_EQ(result->counts.voxels, 5);
  }
  EXPECT_EQ(latency.EstimateVoxels(20), 20) << "which is known from then on";
}

TEST_P(WorkerTest, MemoryIsGivenBackWhereBatchesNeedLessThanHalfOfIt) {
  if (GetParam() == support::Device::kCuda) GTEST_SKIP() << "a GPU's batches leave nothing in the host's memory";
  Start(0, 10'000);
  model_->on_device[0].latency->ObserveVoxels(1000, 1000);
  const PointCloud large = Row(10'000), small = Row(10);
  Run(std::vector<PointCloud>{large, small});
  const int64_t kept = batch_bytes_;
  EXPECT_GT(kept, 0);
  memory_age_ = absl::ZeroDuration();  // memory may be given back after every batch
  Run(std::vector<PointCloud>{large});
  EXPECT_GT(batch_bytes_, kept / 2) << "the next one may need it";
  Run(std::vector<PointCloud>{large, small});
  EXPECT_THAT(RequestsOfBatches(), ElementsAre(1, 1));
  EXPECT_EQ(batch_bytes_, 0);
}

TEST_P(WorkerTest, AResultHasTheOutputsOfTheNetwork) {
  Start(0, 0);
  const absl::StatusOr<InferResult> labelled = Run(Row(5));
  ASSERT_TRUE(labelled.ok()) << labelled.status();
  ASSERT_NE(labelled->Find(NamedOutput::kLabels), nullptr);
  EXPECT_EQ(labelled->Find(NamedOutput::kLabels)->num_rows(), 5);
  EXPECT_EQ(labelled->Find(NamedOutput::kScores), nullptr) << "nobody asked for scores";
  EXPECT_EQ(labelled->Find(NamedOutput::kBoxes), nullptr);
}

TEST_P(WorkerTest, AResultOfBoxesNamesTheirClasses) {
  Start(0, 0);
  const absl::StatusOr<InferResult> labelled = Run(Row(5));
  ASSERT_TRUE(labelled.ok()) << labelled.status();
  EXPECT_TRUE(labelled->class_names.empty());
  ASSERT_GT(model_->info.classes.size(), 1u);
  model_->info.has_boxes = true;
  const absl::StatusOr<InferResult> detected = Run(Row(5));
  ASSERT_TRUE(detected.ok()) << detected.status();
  ASSERT_EQ(detected->class_names.size(), model_->info.classes.size());
  EXPECT_EQ(detected->class_names[1], model_->info.classes[1].name);
}

TEST_P(WorkerTest, ACloudOfMoreVoxelsThanABatchMayHaveRunsAlone) {
  Start(0, 10);
  const auto results = Run({Row(30), Row(1), Row(1)});
  for (const auto& result : results) EXPECT_TRUE(result.ok()) << result.status();
  int64_t requests = 0;
  for (const BatchRun& batch : observer_.batches) {
    EXPECT_TRUE(batch.requests == 1 || batch.voxels <= 10);
    requests += batch.requests;
  }
  EXPECT_EQ(requests, 3);
}

TEST_P(WorkerTest, WithoutALimitOfVoxelsItIsRunWhole) {
  Start(0, 0);
  model_->on_device[0].latency->ObserveVoxels(1000, 1);
  const auto results = Run(std::vector<PointCloud>(4, Row(50)));
  EXPECT_THAT(RequestsOfBatches(), ElementsAre(4));
  for (const auto& result : results) EXPECT_TRUE(result.ok()) << result.status();
}

TEST_P(WorkerTest, ABatchThatDoesNotFitIsRunInPartsAndRemembered) {
  const auto scan = LoadGoldenScan("pandaset_070");
  ASSERT_TRUE(scan.ok()) << scan.status();
  int64_t limit = int64_t{128} << 20;
  absl::StatusOr<InferResult> alone = absl::UnknownError("not run");
  for (; !alone.ok(); limit += limit / 8) {
    ASSERT_LT(limit, int64_t{8} << 30) << alone.status();
    Start(limit, 0);
    if (HasFatalFailure()) return;
    alone = Run(scan->cloud);
  }
  const size_t num_labels = alone->labels().size();
  alone = absl::UnknownError("its memory is given back, before the budget goes that it is counted in");
  limit += limit / 8;
  Start(limit, 0);
  // The memory model knows nothing yet, and the batcher does not know the limit. So the batch of eight is too large.
  const auto results = Run(std::vector<PointCloud>(8, scan->cloud));
  for (const auto& result : results) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->labels().size(), num_labels);
  }
  EXPECT_GT(observer_.batches.size(), 1u);
  EXPECT_EQ(model_->on_device[0].memory->MaxPoints(MemoryModel::kNoLimit, 1), 4 * scan->num_points());
  const bool is_cpu = GetParam() == support::Device::kCpu;
  EXPECT_LE(is_cpu ? budget_->held() : devices_[0].pool->used_bytes(), limit);
}

}  // namespace
}  // namespace voxserve::worker_test
