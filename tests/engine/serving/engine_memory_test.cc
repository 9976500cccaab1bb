// Tests an engine on the CPU with a budget of the host's memory: what requests and models reserve, and that memory is
// freed when nothing runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "engine/runtime/available_memory.h"
#include "engine/serving/engine.h"
#include "tests/engine/golden_scan.h"
#include "tests/engine/serving/test_engine.h"
#include "tests/support/await_true.h"
#include "tests/support/model_folder.h"

namespace voxserve::engine_memory_test {
namespace {

using ::testing::HasSubstr;
using Use = MemoryBudget::Use;

constexpr int64_t kMiB = int64_t{1} << 20;

// Returns this many points, each in its own voxel. They lie on lines that are two voxels apart.
PointCloud Lattice(int num_points) {
  std::vector<float> values;
  for (int i = 0; i < num_points; ++i) {
    const int x = i % 1000, y = i / 1000 % 1000;
    values.insert(values.end(), {static_cast<float>(x) * 0.4f, static_cast<float>(y) * 0.4f, 0, 0.5f});
  }
  return Cloud(values);
}

class EngineMemoryTest : public ::testing::Test {
 protected:
  EngineMemoryTest() {
    std::filesystem::copy(Models() + "/minkunet", folder_.path() / "minkunet",
                          std::filesystem::copy_options::recursive);
  }

  void Start(int64_t limit_bytes) {
    engine_.reset();
    budget_ = std::make_unique<MemoryBudget>(limit_bytes);
    engine_ = MakeEngine(
        {.model_repository = folder_.path(), .num_threads = 2, .devices = "cpu", .memory_budget = budget_.get()});
  }

  // Waits until the reserved scratch memory has this size. Returns false if the timeout passes first.
  bool AwaitScratch(int64_t bytes, absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    while (budget_->held(Use::kScratch) != bytes && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(50));
    return budget_->held(Use::kScratch) == bytes;
  }

  support::TemporaryFolder folder_;
  std::unique_ptr<MemoryBudget> budget_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineMemoryTest, WeightsAreReservedUntilTheVersionGoes) {
  Start(0);
  const int64_t weights = budget_->held(Use::kModels);
  EXPECT_GT(weights, kMiB);
  EXPECT_EQ(budget_->held(), weights);
  absl::Notification unloaded;
  engine_->Unload({.model = "minkunet", .done = [&](absl::StatusOr<std::vector<int64_t>>) { unloaded.Notify(); }});
  unloaded.WaitForNotification();
  for (int i = 0; i < 100 && budget_->held() != 0; ++i) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(budget_->held(), 0);
  absl::Notification loaded;
  engine_->Load({.model = "minkunet", .done = [&](absl::StatusOr<std::vector<int64_t>> versions) {
                   EXPECT_TRUE(versions.ok()) << versions.status();
                   loaded.Notify();
                 }});
  loaded.WaitForNotification();
  EXPECT_EQ(budget_->held(), weights);
}

TEST_F(EngineMemoryTest, AModelThatDoesNotFitIsRefusedAndTheVersionInServiceStays) {
  Start(0);
  const int64_t weights = budget_->held(Use::kModels);
  const auto refused_by = [&](int64_t left) {
    const auto others = budget_->Reserve(Use::kModels, budget_->limit_bytes() - budget_->held() - left);
    EXPECT_TRUE(others.ok()) << others.status();
    absl::Notification ended;
    absl::Status status;
    engine_->Load({.model = "minkunet", .version = 1, .done = [&](absl::StatusOr<std::vector<int64_t>> versions) {
                     status = versions.status();
                     ended.Notify();
                   }});
    ended.WaitForNotification();
    return status;
  };
  // If the files of a version change, the engine reads them while the old weights are still in memory.
  Start(10 * weights);
  ASSERT_EQ(engine_->ListModels().at(0).state, ModelState::kReady);
  std::filesystem::last_write_time(folder_.path() / "minkunet/1/weights.safetensors",
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  const absl::Status unread = refused_by(kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(unread)) << unread;
  EXPECT_EQ(ReasonOf(unread), error_reason::kOutOfMemory);
  EXPECT_THAT(std::string(unread.message()), HasSubstr("bytes of models do not fit"));
  EXPECT_EQ(budget_->held(), weights);
  EXPECT_TRUE(Infer(*engine_, {.model = "minkunet", .cloud = Lattice(10)}).ok()) << "it is served all the same";

  Start(weights / 2);
  EXPECT_NE(engine_->ListModels().at(0).state, ModelState::kReady);
  EXPECT_THAT(engine_->ListModels().at(0).problems, ::testing::Contains(HasSubstr("do not fit")));
  EXPECT_EQ(budget_->held(), 0);
}

TEST_F(EngineMemoryTest, ARequestThatDoesNotFitIsRefusedAndOthersAreServed) {
  Start(0);
  const int64_t weights = budget_->held(Use::kModels);
  const PointCloud small = Lattice(2'000), large = Lattice(150'000);
  Start(4 * weights + 40 * kMiB);
  for (int i = 0; i < 3; ++i) {
    const int64_t before = budget_->held();  // with what a short request's worker keeps for the next one
    const auto refused = Infer(*engine_, {.model = "minkunet", .cloud = large});
    EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
    EXPECT_EQ(ReasonOf(refused.status()), error_reason::kOutOfMemory);
    EXPECT_LE(budget_->held(), before) << "nothing is left of it";
    const auto served = Infer(*engine_, {.model = "minkunet", .cloud = small});
    EXPECT_TRUE(served.ok()) << served.status();
  }
}

TEST_F(EngineMemoryTest, RequestsSideBySideNeverExceedTheLimit) {
  Start(0);
  const int64_t limit = 4 * budget_->held(Use::kModels) + 150 * kMiB;
  Start(limit);
  const int64_t weights = budget_->held(Use::kModels);
  std::vector<std::thread> clients;
  std::atomic<int> served{0}, refused{0}, wrong{0};
  std::atomic<bool> has_ended{false};
  int64_t most = 0;
  std::thread watch([&] {
    while (!has_ended) {
      most = std::max(most, budget_->held());
      absl::SleepFor(absl::Milliseconds(1));
    }
  });
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 6; ++i) {
        const auto result = Infer(*engine_, {.model = "minkunet", .cloud = Lattice(client == 0 ? 150'000 : 5'000)});
        if (result.ok()) {
          ++served;
        } else {
          ++(ReasonOf(result.status()) == error_reason::kOutOfMemory ? refused : wrong);
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  has_ended = true;
  watch.join();
  EXPECT_LE(most, limit);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(served, 18) << "the small ones, whatever they shared a batch with";
  EXPECT_EQ(refused, 6);
  EXPECT_TRUE(AwaitScratch(0, absl::Seconds(15)));
  EXPECT_EQ(budget_->held(), weights);
}

TEST_F(EngineMemoryTest, MemoryGoesBackWhenNothingRuns) {
  Start(0);
  const int64_t weights = budget_->held(Use::kModels);
  // The first request shows that its size is short, so that later ones of its size run on the worker for short ones.
  ASSERT_TRUE(Infer(*engine_, {.model = "minkunet", .cloud = Lattice(1'000)}).ok());
  ASSERT_TRUE(AwaitScratch(0, absl::Seconds(15)));
  malloc_trim(0);  // the heap would give this memory back soon, and the limits below would then be wider
  const int64_t before = ResidentBytes();
  ASSERT_TRUE(Infer(*engine_, {.model = "minkunet", .cloud = Lattice(300'000)}).ok());
  EXPECT_EQ(budget_->held(), weights) << "a long request's memory is not kept";
  EXPECT_TRUE(support::AwaitTrue([&] { return ResidentBytes() - before < 30 * kMiB; })) << "the heap's memory follows";
  std::printf("resident: %.0f MiB before, %.0f MiB in the end\n", static_cast<double>(before) / kMiB,
              static_cast<double>(ResidentBytes()) / kMiB);

  ASSERT_TRUE(Infer(*engine_, {.model = "minkunet", .cloud = Lattice(1'000)}).ok());
  EXPECT_GT(budget_->held(Use::kScratch), 0) << "a short request's memory is kept for the next one";
  EXPECT_TRUE(AwaitScratch(0, absl::Seconds(15)));
  EXPECT_EQ(budget_->held(), weights);
}

}  // namespace
}  // namespace voxserve::engine_memory_test
