#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace voxserve {
namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::HasSubstr;
using testing::Not;

class MetricsTest : public testing::Test {
 protected:
  MetricsTest() { metrics_.OnModelState("net", 2, true); }

  Metrics metrics_;
};

TEST_F(MetricsTest, NamesAndLabelsAreThePublishedOnes) {
  metrics_.SetBuildInfo("1.2.3", "cpu");
  metrics_.OnPlan("net", 2, "cpu", "default");
  metrics_.OnPlanLookup(true);
  metrics_.OnPlanLookup(false);
  metrics_.OnPlanLookup(false);
  metrics_.OnRequest("net", 2, absl::StatusCode::kOk, absl::Milliseconds(3));
  metrics_.OnFrameAge("net", absl::Milliseconds(30));
  metrics_.OnStage("net", "features", absl::Milliseconds(2));
  metrics_.OnBatch("net", 2, 3000, 1500);
  metrics_.OnPoints("net", 10, 1, 2, 3);
  metrics_.OnDropped("net", "queue_full");
  metrics_.OnQueueDepth("net", 4);
  metrics_.OnGridFallback();
  metrics_.OnDeviceBusy("cpu", "compute", absl::Milliseconds(500));
  metrics_.OnDeviceMemory("cpu", "arena", 1024);
  const std::string text = metrics_.Text();
  for (const char* line : {
           R"(voxserve_requests_total{code="OK",model="net",version="2"} 1)",
           R"(voxserve_frames_total{model="net"} 1)",
           R"(voxserve_points_total{fate="used",model="net"} 10)",
           R"(voxserve_points_total{fate="invalid",model="net"} 1)",
           R"(voxserve_points_total{fate="out_of_range",model="net"} 2)",
           R"(voxserve_points_total{fate="dropped",model="net"} 3)",
           R"(voxserve_frames_dropped_total{model="net",reason="queue_full"} 1)",
           R"(voxserve_request_duration_seconds_count{model="net"} 1)",
           R"(voxserve_request_duration_seconds_bucket{model="net",le="0.0001"} 0)",
           R"(voxserve_request_duration_seconds_bucket{model="net",le="0.003"} 1)",
           R"(voxserve_stage_duration_seconds_count{model="net",stage="features"} 1)",
           R"(voxserve_batch_requests_sum{model="net"} 2)",
           R"(voxserve_batch_points_sum{model="net"} 3000)",
           R"(voxserve_batch_voxels_sum{model="net"} 1500)",
           R"(voxserve_frame_age_seconds_count{model="net"} 1)",
           R"(voxserve_frame_age_negative_total{model="net"} 0)",
           R"(voxserve_queue_depth{model="net"} 4)",
           R"(voxserve_grid_fallbacks_total 1)",
           R"(voxserve_plan_cache_hits_total 1)",
           R"(voxserve_plan_cache_misses_total 2)",
           R"(voxserve_device_busy_seconds_total{device="cpu",stream="compute"} 0.5)",
           R"(voxserve_device_memory_bytes{device="cpu",kind="arena"} 1024)",
           R"(voxserve_model_ready{model="net",version="2"} 1)",
           R"(voxserve_plan_info{device="cpu",model="net",source="default"} 1)",
       }) {
    EXPECT_THAT(text, HasSubstr(std::string(line) + "\n"));
  }
  EXPECT_THAT(text, testing::ContainsRegex("voxserve_build_info\\{[^}]*version=\"1.2.3\"[^}]*\\} 1\n"));
  EXPECT_THAT(text, testing::ContainsRegex("voxserve_build_info\\{[^}]*backend=\"cpu\"[^}]*\\} 1\n"));
}

TEST_F(MetricsTest, ClientsCannotMakeUpTimeSeries) {
  for (int i = 0; i < 100; ++i) {
    metrics_.OnRequest("made up " + std::to_string(i), i, absl::StatusCode::kNotFound, absl::Milliseconds(1));
    metrics_.OnDropped("made up " + std::to_string(i), "draining");
  }
  metrics_.OnRequest("net", 77, absl::StatusCode::kNotFound, absl::Milliseconds(1));
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, Not(HasSubstr("made up")));
  EXPECT_THAT(text, Not(HasSubstr("\"77\"")));
  EXPECT_THAT(text,
              HasSubstr("voxserve_requests_total{code=\"NOT_FOUND\",model=\"_unknown\",version=\"_unknown\"} 100\n"));
  EXPECT_THAT(text, HasSubstr("voxserve_requests_total{code=\"NOT_FOUND\",model=\"net\",version=\"_unknown\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("voxserve_frames_dropped_total{model=\"_unknown\",reason=\"draining\"} 100\n"));
}

TEST_F(MetricsTest, AFastRefusalIsNoFastFrame) {
  metrics_.OnRequest("net", 2, absl::StatusCode::kResourceExhausted, absl::Microseconds(10));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_request_duration_seconds_count{model=\"net\"} 0\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frames_total{model=\"net\"} 0\n"));
  EXPECT_EQ(metrics_.StatisticsOf("net").failures, 1);
}

TEST_F(MetricsTest, NegativeAgesStandApart) {
  metrics_.OnFrameAge("net", absl::Milliseconds(-5));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frame_age_negative_total{model=\"net\"} 1\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frame_age_seconds_count{model=\"net\"} 0\n"));
}

TEST_F(MetricsTest, SeriesStandAtZeroBeforeTheFirstEvent) {
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frames_total{model=\"net\"} 0\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_grid_fallbacks_total 0\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_plan_cache_hits_total 0\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_plan_cache_misses_total 0\n"));
}

TEST_F(MetricsTest, APlanReplacesTheOneBefore) {
  const auto series = [](const char* device, const char* source) {
    return HasSubstr(
        absl::StrCat("voxserve_plan_info{device=\"", device, "\",model=\"net\",source=\"", source, "\"} 1\n"));
  };
  metrics_.OnPlan("net", 2, "cuda:0", "default");
  metrics_.OnPlan("net", 2, "cuda:1", "default");
  metrics_.OnPlan("net", 2, "cuda:0", "tuned");
  EXPECT_THAT(metrics_.Text(), AllOf(series("cuda:0", "tuned"), series("cuda:1", "default")));
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr(R"(device="cuda:0",model="net",source="default")")));
  metrics_.OnPlan("net", 2, "cuda:0", "tuned");
  EXPECT_THAT(metrics_.Text(), series("cuda:0", "tuned")) << "the same again";
  metrics_.OnPlan("net", 2, "cuda:0", "default");
  EXPECT_THAT(metrics_.Text(), series("cuda:0", "default")) << "and back";
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("tuned\"}")));
}

TEST_F(MetricsTest, VersionsKeepTheSourcesOfTheirPlans) {
  metrics_.OnPlan("net", 1, "cpu", "default");
  metrics_.OnPlan("net", 2, "cpu", "default");
  metrics_.OnPlan("net", 2, "cpu", "plan_dir");
  EXPECT_THAT(metrics_.Text(), AllOf(HasSubstr(R"(source="default"} 1)"), HasSubstr(R"(source="plan_dir"} 1)")));
  metrics_.OnPlan("net", 1, "cpu", "model");
  EXPECT_THAT(metrics_.Text(), AllOf(Not(HasSubstr(R"(source="default"})")), HasSubstr(R"(source="plan_dir"} 1)"),
                                     HasSubstr(R"(source="model"} 1)")));
}

TEST_F(MetricsTest, AModelStopsBeingReady) {
  metrics_.OnModelState("net", 2, false);
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_model_ready{model=\"net\",version=\"2\"} 0\n"));
}

TEST_F(MetricsTest, StatisticsSumUp) {
  for (int i = 0; i < 90; ++i) metrics_.OnRequest("net", 2, absl::StatusCode::kOk, absl::Milliseconds(2.5));
  for (int i = 0; i < 10; ++i) metrics_.OnRequest("net", 2, absl::StatusCode::kOk, absl::Milliseconds(60));
  metrics_.OnStage("net", "queue", absl::Milliseconds(1));
  metrics_.OnStage("net", "queue", absl::Milliseconds(3));
  metrics_.OnQueueDepth("net", 7);
  const ModelStatistics statistics = metrics_.StatisticsOf("net");
  EXPECT_EQ(statistics.frames, 100);
  EXPECT_EQ(statistics.failures, 0);
  EXPECT_EQ(statistics.queue_depth, 7);
  // 90 lie in (2, 3] ms, 10 in (50, 75].
  EXPECT_THAT(statistics.p50_seconds, DoubleNear(0.002 + 0.001 * 50 / 90, 1e-9));
  EXPECT_THAT(statistics.p95_seconds, DoubleNear(0.05 + 0.025 * 5 / 10, 1e-9));
  EXPECT_THAT(statistics.p99_seconds, DoubleNear(0.05 + 0.025 * 9 / 10, 1e-9));
  ASSERT_EQ(statistics.stage_mean_seconds.size(), 1u);
  EXPECT_EQ(statistics.stage_mean_seconds[0].first, "queue");
  EXPECT_THAT(statistics.stage_mean_seconds[0].second, DoubleNear(0.002, 1e-9));
  EXPECT_EQ(metrics_.StatisticsOf("nobody").frames, 0);
}

TEST_F(MetricsTest, StagesComeInTheOrderOfARequest) {
  for (const char* stage : {"encode", "special", "features", "queue", "decode"}) {
    metrics_.OnStage("net", stage, absl::Milliseconds(1));
  }
  std::vector<std::string> order;
  for (const auto& [stage, seconds] : metrics_.StatisticsOf("net").stage_mean_seconds) order.push_back(stage);
  EXPECT_THAT(order, testing::ElementsAre("decode", "queue", "features", "encode", "special"));
}

TEST_F(MetricsTest, DevicesSumUp) {
  EXPECT_TRUE(metrics_.DeviceStatisticsByName().empty());
  metrics_.OnDeviceBusy("cuda:1", "compute", absl::Seconds(2));
  metrics_.OnDeviceBusy("cuda:1", "compute", absl::Seconds(1));
  metrics_.OnDeviceBusy("cuda:1", "copy", absl::Seconds(9));
  metrics_.OnDeviceMemory("cuda:1", "weights", 10);
  metrics_.OnDeviceMemory("cuda:1", "arena", 20);
  metrics_.OnDeviceMemory("cuda:0", "arena", 5);
  const std::vector<DeviceStatistics> devices = metrics_.DeviceStatisticsByName();
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].device, "cuda:0");
  EXPECT_EQ(devices[0].busy_seconds, 0);
  EXPECT_EQ(devices[1].busy_seconds, 3);
  EXPECT_THAT(devices[1].memory_bytes, testing::ElementsAre(testing::Pair("arena", 20), testing::Pair("weights", 10)));
}

TEST_F(MetricsTest, ThreadsLoseNothing) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 500; ++i) {
        metrics_.OnRequest("net", 2, absl::StatusCode::kOk, absl::Milliseconds(1));
        metrics_.OnStage("net", "encode", absl::Milliseconds(1));
        if (i % 100 == 0) metrics_.Text();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frames_total{model=\"net\"} 2000\n"));
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("voxserve_stage_duration_seconds_count{model=\"net\",stage=\"encode\"} 2000\n"));
}

TEST(HistogramQuantileTest, IsLinearInABucket) {
  EXPECT_EQ(HistogramQuantile({1, 2, 4}, {0, 0, 0, 0}, 0.5), 0);
  EXPECT_DOUBLE_EQ(HistogramQuantile({1, 2, 4}, {4, 0, 0, 0}, 0.5), 0.5);
  EXPECT_DOUBLE_EQ(HistogramQuantile({1, 2, 4}, {0, 0, 4, 0}, 0.5), 3);
  EXPECT_DOUBLE_EQ(HistogramQuantile({1, 2, 4}, {1, 2, 1, 0}, 0.5), 1.5);
  EXPECT_DOUBLE_EQ(HistogramQuantile({1, 2, 4}, {1, 0, 0, 9}, 0.9), 4) << "beyond the last boundary";
  EXPECT_DOUBLE_EQ(HistogramQuantile({1, 2, 4}, {0, 1, 0, 0}, 1.0), 2);
}

}  // namespace
}  // namespace voxserve
