#include "server/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace voxserve::metrics_test {
namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

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
  metrics_.OnRefusal("net", absl::StatusCode::kResourceExhausted, absl::Microseconds(120));
  metrics_.OnFrameAge("net", absl::Milliseconds(30));
  metrics_.OnStage("net", Stage::kFeatures, absl::Milliseconds(2));
  metrics_.OnBatch("net", 2, 3000, 1500);
  metrics_.OnPoints("net",
                    {.used = 10, .invalid = 1, .out_of_range = 2, .dropped = 3, .unsampled = 4, .not_finite = 5});
  metrics_.OnNotFiniteBoxes("net", 6);
  metrics_.OnFeatureWarning("net", "intensity");
  metrics_.OnBoxes("net", 7);
  metrics_.OnDropped("net", DropReason::kQueueFull);
  metrics_.OnStuckBatch("net", "cuda:1");
  metrics_.OnPrediction("net", absl::Milliseconds(11), absl::Milliseconds(10));
  metrics_.OnDeviceTime("net", absl::Milliseconds(250));
  metrics_.OnDeviceTime("net", -absl::Milliseconds(1));
  metrics_.OnDeviceTime("net", absl::InfiniteDuration());
  metrics_.OnQueueDepth("net", 4);
  metrics_.OnStreamOpened("net");
  metrics_.OnUnusedConnection("NO_CALL");
  metrics_.OnGridFallback();
  metrics_.OnRerun();
  metrics_.OnReplay();
  metrics_.OnGeometryFallback();
  metrics_.OnDeviceBusy("cpu", "compute", absl::Milliseconds(500));
  metrics_.OnDeviceMemory("cpu", "arena", 1024);
  const std::string text = metrics_.Text();
  for (const char* line : {
           R"(voxserve_requests_total{code="OK",model="net",version="2"} 1)",
           R"(voxserve_frames_total{model="net"} 1)",
           R"(voxserve_points_total{fate="used",model="net"} 10)",
           R"(voxserve_points_total{fate="invalid",model="net"} 1)",
           R"(voxserve_points_total{fate="out_of_range",model="net"} 2)",
           R"(voxserve_points_total{fate="unsampled",model="net"} 4)",
           R"(voxserve_points_total{fate="dropped",model="net"} 3)",
           R"(voxserve_points_not_finite_total{model="net"} 5)",
           R"(voxserve_boxes_total{model="net"} 7)",
           R"(voxserve_connections_unused_total{reason="NO_CALL"} 1)",
           R"(voxserve_boxes_not_finite_total{model="net"} 6)",
           R"(voxserve_feature_warnings_total{feature="intensity",model="net"} 1)",
           R"(voxserve_frames_dropped_total{model="net",reason="queue_full"} 1)",
           R"(voxserve_stuck_batches_total{device="cuda:1",model="net"} 1)",
           R"(voxserve_request_duration_seconds_count{model="net"} 1)",
           R"(voxserve_request_duration_seconds_bucket{model="net",le="0.0001"} 0)",
           R"(voxserve_request_duration_seconds_bucket{model="net",le="0.003"} 1)",
           R"(voxserve_refusal_duration_seconds_count{model="net"} 1)",
           R"(voxserve_refusal_duration_seconds_bucket{model="net",le="0.0001"} 0)",
           R"(voxserve_refusal_duration_seconds_bucket{model="net",le="0.00015"} 1)",
           R"(voxserve_stage_duration_seconds_count{model="net",stage="features"} 1)",
           R"(voxserve_batch_requests_sum{model="net"} 2)",
           R"(voxserve_batch_points_sum{model="net"} 3000)",
           R"(voxserve_batch_voxels_sum{model="net"} 1500)",
           R"(voxserve_frame_age_seconds_count{model="net"} 1)",
           R"(voxserve_frame_age_negative_total{model="net"} 0)",
           R"(voxserve_latency_prediction_error_ratio_count{model="net"} 1)",
           R"(voxserve_latency_prediction_error_ratio_bucket{model="net",le="0.075"} 0)",
           R"(voxserve_latency_prediction_error_ratio_bucket{model="net",le="0.15"} 1)",
           R"(voxserve_device_seconds_total{model="net"} 0.25)",
           R"(voxserve_queue_depth{model="net"} 4)",
           R"(voxserve_streams{model="net"} 1)",
           R"(voxserve_grid_fallbacks_total 1)",
           R"(voxserve_batch_reruns_total 1)",
           R"(voxserve_batch_replays_total 1)",
           R"(voxserve_geometry_fallbacks_total 1)",
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
    metrics_.OnPrediction("made up " + std::to_string(i), absl::Seconds(1), absl::Seconds(2));
    metrics_.OnDeviceTime("made up " + std::to_string(i), absl::Seconds(1));
    metrics_.OnQueueDepth("made up " + std::to_string(i), i);
    metrics_.OnRequest("made up " + std::to_string(i), i, absl::StatusCode::kNotFound, absl::Milliseconds(1));
    metrics_.OnDropped("made up " + std::to_string(i), DropReason::kDraining);
    metrics_.OnRefusal("made up " + std::to_string(i), absl::StatusCode::kNotFound, absl::Milliseconds(1));
  }
  metrics_.OnRequest("net", 77, absl::StatusCode::kNotFound, absl::Milliseconds(1));
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, Not(HasSubstr("made up")));
  EXPECT_THAT(text, Not(HasSubstr("\"77\"")));
  EXPECT_THAT(text,
              HasSubstr("voxserve_requests_total{code=\"NOT_FOUND\",model=\"_unknown\",version=\"_unknown\"} 100\n"));
  EXPECT_THAT(text, HasSubstr("voxserve_requests_total{code=\"NOT_FOUND\",model=\"net\",version=\"_unknown\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("voxserve_frames_dropped_total{model=\"_unknown\",reason=\"draining\"} 100\n"));
  EXPECT_THAT(text, HasSubstr("voxserve_refusal_duration_seconds_count{model=\"_unknown\"} 100\n"));
}

TEST_F(MetricsTest, OnlyModelsWithBoxesHaveBoxes) {
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("voxserve_boxes_total{")));
  metrics_.OnBoxes("net", 0);
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_boxes_total{model=\"net\"} 0\n"));
  metrics_.OnBoxes("net", 5);
  EXPECT_EQ(metrics_.StatisticsOf("net").boxes, 5);
}

TEST_F(MetricsTest, AFastRefusalIsNoFastFrame) {
  metrics_.OnRequest("net", 2, absl::StatusCode::kResourceExhausted, absl::Microseconds(10));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_request_duration_seconds_count{model=\"net\"} 0\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frames_total{model=\"net\"} 0\n"));
  EXPECT_EQ(metrics_.StatisticsOf("net").latency_seconds.count, 0);
  EXPECT_THAT(metrics_.StatisticsOf("net").failures, ElementsAre(Pair("RESOURCE_EXHAUSTED", 1)));
}

TEST_F(MetricsTest, NegativeAgesStandApart) {
  metrics_.OnFrameAge("net", absl::Milliseconds(-5));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frame_age_negative_total{model=\"net\"} 1\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frame_age_seconds_count{model=\"net\"} 0\n"));
  EXPECT_EQ(metrics_.StatisticsOf("net").negative_ages, 1);
  EXPECT_EQ(metrics_.StatisticsOf("net").frame_age_seconds.count, 0);
}

TEST_F(MetricsTest, AgesOfRecordingsStandApart) {
  metrics_.OnFrameAge("net", absl::Hours(1));
  metrics_.OnFrameAge("net", absl::Hours(1) + absl::Nanoseconds(1));
  metrics_.OnFrameAge("net", absl::Hours(24 * 365 * 2000));
  metrics_.OnFrameAge("net", absl::InfiniteDuration());
  metrics_.OnFrameAge("net", -absl::InfiniteDuration());
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frame_age_stale_total{model=\"net\"} 3\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frame_age_negative_total{model=\"net\"} 1\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frame_age_seconds_sum{model=\"net\"} 3600\n"));
  EXPECT_EQ(metrics_.StatisticsOf("net").frame_age_seconds.mean, 3600);
}

TEST_F(MetricsTest, SumsStayFinite) {
  for (const absl::Duration bad : {absl::InfiniteDuration(), -absl::InfiniteDuration(), absl::Seconds(-5)}) {
    metrics_.OnRequest("net", 2, absl::StatusCode::kOk, bad);
    metrics_.OnRefusal("net", absl::StatusCode::kResourceExhausted, bad);
    metrics_.OnStage("net", Stage::kFeatures, bad);
    metrics_.OnPrediction("net", bad, absl::Milliseconds(1));
  }
  metrics_.OnRequest("net", 2, absl::StatusCode::kOk, absl::Seconds(2));
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr("voxserve_request_duration_seconds_sum{model=\"net\"} 2\n")) << "none is below 0";
  EXPECT_THAT(text, HasSubstr("voxserve_request_duration_seconds_count{model=\"net\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("voxserve_refusal_duration_seconds_sum{model=\"net\"} 0\n"));
  EXPECT_THAT(text, HasSubstr(R"(voxserve_stage_duration_seconds_sum{model="net",stage="features"} 0)"));
  EXPECT_THAT(text, HasSubstr("voxserve_latency_prediction_error_ratio_sum{model=\"net\"} 5001\n"));
  EXPECT_EQ(text.find("Inf\n"), std::string::npos);
  EXPECT_EQ(text.find("Nan"), std::string::npos);
  EXPECT_EQ(metrics_.StatisticsOf("net").latency_seconds.mean, 1);
}

TEST_F(MetricsTest, PredictionErrorsHaveNoSign) {
  metrics_.OnPrediction("net", absl::Milliseconds(6), absl::Milliseconds(4));
  metrics_.OnPrediction("net", absl::Milliseconds(2), absl::Milliseconds(4));
  metrics_.OnPrediction("net", absl::Milliseconds(2), absl::ZeroDuration());
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_latency_prediction_error_ratio_sum{model=\"net\"} 1\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_latency_prediction_error_ratio_count{model=\"net\"} 2\n"))
      << "a batch that took no time has no ratio";
  EXPECT_DOUBLE_EQ(metrics_.StatisticsOf("net").prediction_error.mean, 0.5);
}

TEST_F(MetricsTest, SeriesStandAtZeroBeforeTheFirstEvent) {
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frames_total{model=\"net\"} 0\n"));
  for (const char* reason :
       {"superseded", "unmeetable", "given_up", "expired", "cancelled", "queue_full", "draining"}) {
    EXPECT_THAT(metrics_.Text(),
                HasSubstr(absl::StrCat("voxserve_frames_dropped_total{model=\"net\",reason=\"", reason, "\"} 0\n")));
  }
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_queue_depth{model=\"net\"} 0\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_streams{model=\"net\"} 0\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_grid_fallbacks_total 0\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_batch_reruns_total 0\n"));
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
  metrics_.OnModelState("net", 1, true);
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

TEST_F(MetricsTest, PlansShowOnceTheirVersionIsListed) {
  metrics_.OnPlan("net", 3, "cpu", "model");
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("source=\"model\"")));
  EXPECT_TRUE(metrics_.StatisticsOf("net").plans.empty());
  metrics_.OnModelState("net", 3, false);
  EXPECT_THAT(metrics_.Text(), HasSubstr(R"(voxserve_plan_info{device="cpu",model="net",source="model"} 1)"));
  ASSERT_EQ(metrics_.StatisticsOf("net").plans.size(), 1u);
  EXPECT_EQ(metrics_.StatisticsOf("net").plans[0].version, 3);
  EXPECT_EQ(metrics_.StatisticsOf("net").plans[0].device, "cpu");
  EXPECT_EQ(metrics_.StatisticsOf("net").plans[0].source, "model");
}

TEST_F(MetricsTest, ARemovedModelLeavesNoGauges) {
  metrics_.OnModelState("net", 3, true);
  metrics_.OnPlan("net", 2, "cpu", "default");
  metrics_.OnPlan("net", 3, "cpu", "tuned");
  metrics_.OnStreamOpened("net");
  metrics_.OnQueueDepth("net", 5);
  metrics_.OnModelRemoved("net", 2);
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr(R"(voxserve_model_ready{model="net",version="2"})")));
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr(R"(source="default")")));
  EXPECT_THAT(metrics_.Text(), HasSubstr(R"(voxserve_model_ready{model="net",version="3"} 1)"));
  EXPECT_THAT(metrics_.Text(), HasSubstr(R"(source="tuned")"));
  EXPECT_THAT(metrics_.Text(), HasSubstr(R"(voxserve_queue_depth{model="net"} 5)"));

  metrics_.OnModelRemoved("net", 3);
  metrics_.OnPlan("net", 3, "cpu", "plan_dir");
  metrics_.OnQueueDepth("net", 4);
  for (const char* gauge :
       {"voxserve_model_ready{", "voxserve_plan_info{", "voxserve_queue_depth{", "voxserve_streams{"}) {
    EXPECT_THAT(metrics_.Text(), Not(HasSubstr(gauge))) << "nor by what comes late";
  }
}

TEST_F(MetricsTest, ARemovedModelKeepsItsCounters) {
  metrics_.OnModelRemoved("net", 2);
  metrics_.OnRequest("net", 2, absl::StatusCode::kOk, absl::Milliseconds(1));
  metrics_.OnDropped("net", DropReason::kExpired);
  metrics_.OnRequest("net", 2, absl::StatusCode::kNotFound, absl::Milliseconds(1));
  const std::string text = metrics_.Text();
  EXPECT_THAT(text, HasSubstr(R"(voxserve_requests_total{code="OK",model="net",version="2"} 1)"))
      << "it had been accepted";
  EXPECT_THAT(text, HasSubstr(R"(voxserve_frames_total{model="net"} 1)"));
  EXPECT_THAT(text, HasSubstr(R"(voxserve_frames_dropped_total{model="net",reason="expired"} 1)"));
  EXPECT_THAT(text, HasSubstr(R"(voxserve_requests_total{code="NOT_FOUND",model="_unknown",version="_unknown"} 1)"))
      << "it asks for what is not there";
}

TEST_F(MetricsTest, AModelComesBack) {
  metrics_.OnStreamOpened("net");
  metrics_.OnPlan("net", 2, "cpu", "default");
  metrics_.OnModelRemoved("net", 2);
  metrics_.OnModelRemoved("net", 2);
  metrics_.OnModelRemoved("nobody", 1);
  metrics_.OnModelState("net", 2, true);
  EXPECT_THAT(metrics_.Text(), HasSubstr(R"(voxserve_model_ready{model="net",version="2"} 1)"));
  EXPECT_THAT(metrics_.Text(), HasSubstr(R"(voxserve_streams{model="net"} 1)")) << "the stream is open still";
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("voxserve_plan_info{"))) << "the plan is told anew";
  metrics_.OnStreamClosed("net");
  EXPECT_THAT(metrics_.Text(), HasSubstr(R"(voxserve_streams{model="net"} 0)"));
}

TEST_F(MetricsTest, StatisticsSumUp) {
  for (int i = 0; i < 90; ++i) metrics_.OnRequest("net", 2, absl::StatusCode::kOk, absl::Milliseconds(2.5));
  for (int i = 0; i < 9; ++i) metrics_.OnRequest("net", 2, absl::StatusCode::kOk, absl::Milliseconds(60));
  metrics_.OnRequest("net", 2, absl::StatusCode::kOk, absl::Milliseconds(74));
  metrics_.OnStage("net", Stage::kQueue, absl::Milliseconds(1));
  metrics_.OnStage("net", Stage::kQueue, absl::Milliseconds(3));
  metrics_.OnBatch("net", 2, 200'000, 90'000);
  metrics_.OnBatch("net", 4, 400'000, 180'000);
  metrics_.OnFrameAge("net", absl::Milliseconds(40));
  metrics_.OnQueueDepth("net", 7);
  metrics_.OnStreamOpened("net");
  metrics_.OnStreamOpened("net");
  metrics_.OnStreamClosed("net");
  const ModelStatistics statistics = metrics_.StatisticsOf("net");
  EXPECT_EQ(statistics.frames, 100);
  EXPECT_TRUE(statistics.failures.empty());
  EXPECT_TRUE(statistics.dropped.empty());
  EXPECT_EQ(statistics.queue_depth, 7);
  EXPECT_EQ(statistics.streams, 1);
  // 90 latencies lie in the bucket (2, 3] ms and 10 in (50, 75] ms. Percentiles are interpolated linearly in a bucket.
  EXPECT_EQ(statistics.latency_seconds.count, 100);
  EXPECT_THAT(statistics.latency_seconds.p50, DoubleNear(0.002 + 0.001 * 50 / 90, 1e-9));
  EXPECT_THAT(statistics.latency_seconds.p95, DoubleNear(0.05 + 0.025 * 5 / 10, 1e-9));
  EXPECT_THAT(statistics.latency_seconds.p99, DoubleNear(0.05 + 0.025 * 9 / 10, 1e-9));
  ASSERT_EQ(statistics.stage_seconds.size(), 1u);
  EXPECT_EQ(statistics.stage_seconds[0].first, Stage::kQueue);
  EXPECT_THAT(statistics.stage_seconds[0].second.mean, DoubleNear(0.002, 1e-9));
  EXPECT_THAT(statistics.stage_seconds[0].second.p99, DoubleNear(0.003, 1e-4));
  EXPECT_EQ(statistics.batch_requests.mean, 3);
  EXPECT_EQ(statistics.batch_points.mean, 300'000);
  EXPECT_EQ(statistics.batch_voxels.mean, 135'000);
  EXPECT_EQ(statistics.frame_age_seconds.count, 1);
  EXPECT_EQ(metrics_.StatisticsOf("nobody").frames, 0);
}

TEST(MetricsStatisticsTest, ForgetAfterAMinute) {
  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  Metrics metrics([&now] { return now; });
  metrics.OnModelState("net", 1, true);
  for (int i = 0; i < 5; ++i) metrics.OnRequest("net", 1, absl::StatusCode::kOk, absl::Seconds(2));
  metrics.OnStage("net", Stage::kQueue, absl::Seconds(2));
  metrics.OnDropped("net", DropReason::kUnmeetable);
  now += absl::Seconds(55);
  metrics.OnRequest("net", 1, absl::StatusCode::kOk, absl::Milliseconds(2));
  metrics.OnDropped("net", DropReason::kUnmeetable);
  now += absl::Seconds(2);
  ModelStatistics statistics = metrics.StatisticsOf("net");
  EXPECT_EQ(statistics.latency_seconds.count, 6);
  EXPECT_GT(statistics.latency_seconds.p99, 1);
  ASSERT_EQ(statistics.dropped.size(), 1u);
  EXPECT_EQ(statistics.dropped[0].reason, DropReason::kUnmeetable);
  EXPECT_EQ(statistics.dropped[0].last_minute, 2);
  EXPECT_EQ(statistics.frames_history[2], 0);

  now += absl::Seconds(15);
  statistics = metrics.StatisticsOf("net");
  EXPECT_EQ(statistics.latency_seconds.count, 1);
  EXPECT_LT(statistics.latency_seconds.p99, 0.01);
  EXPECT_TRUE(statistics.stage_seconds.empty());
  EXPECT_EQ(statistics.dropped[0].last_minute, 1);
  EXPECT_EQ(statistics.dropped[0].total, 2);
  EXPECT_EQ(statistics.frames, 6);
}

TEST_F(MetricsTest, StagesComeInTheOrderOfARequest) {
  for (size_t i = kStageNames.size(); i-- > 0;) {
    metrics_.OnStage("net", static_cast<Stage>(i), absl::Milliseconds(1));
  }
  std::vector<std::string> order;
  for (const auto& [stage, seconds] : metrics_.StatisticsOf("net").stage_seconds) order.emplace_back(NameOf(stage));
  EXPECT_THAT(order, ElementsAre("decode", "queue", "copy_in", "sample", "voxelize", "geometry", "features", "head",
                                 "copy_out", "encode"));
}

TEST_F(MetricsTest, DevicesSumUp) {
  EXPECT_TRUE(metrics_.DeviceStatisticsByName().empty());
  metrics_.OnDeviceBusy("cuda:1", "0", absl::Seconds(2));
  metrics_.OnDeviceBusy("cuda:1", "0", absl::Seconds(1));
  metrics_.OnDeviceBusy("cuda:1", "1", absl::Seconds(9));
  metrics_.OnDeviceMemory("cuda:1", "weights", 10);
  metrics_.OnDeviceMemory("cuda:1", "arena", 20);
  metrics_.OnDeviceMemory("cuda:0", "arena", 5);
  const std::vector<DeviceStatistics> devices = metrics_.DeviceStatisticsByName();
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].device, "cuda:0");
  EXPECT_EQ(devices[0].busy_seconds, 0);
  EXPECT_EQ(devices[1].busy_seconds, 12);
  EXPECT_THAT(devices[1].memory_bytes, ElementsAre(Pair("arena", 20), Pair("weights", 10)));
}

TEST_F(MetricsTest, EndsOfCertificatesAreSecondsSince1970) {
  metrics_.SetCertificateEnd("tls_client_ca", absl::InfiniteFuture());  // a server without client roots
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("tls_not_after")));
  for (const int64_t seconds : {int64_t{1'800'000'000}, int64_t{4'102'444'800}}) {
    metrics_.SetCertificateEnd("tls_certificate", absl::FromUnixSeconds(seconds));
    EXPECT_THAT(metrics_.Text(), HasSubstr(absl::StrCat(
                                     "voxserve_tls_not_after_timestamp_seconds{flag=\"tls_certificate\"} ", seconds)));
  }
}

TEST_F(MetricsTest, ThreadsLoseNothing) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < 500; ++i) {
        metrics_.OnRequest("net", 2, absl::StatusCode::kOk, absl::Milliseconds(1));
        metrics_.OnStage("net", Stage::kEncode, absl::Milliseconds(1));
        if (i % 100 == 0) metrics_.Text();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(metrics_.Text(), HasSubstr("voxserve_frames_total{model=\"net\"} 2000\n"));
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("voxserve_stage_duration_seconds_count{model=\"net\",stage=\"encode\"} 2000\n"));
}

TEST_F(MetricsTest, TotalsAreTheSumsSinceTheStart) {
  EXPECT_EQ(metrics_.TotalsOf("nobody").successes.count, 0);
  metrics_.OnRequest("net", 2, absl::StatusCode::kOk, absl::Milliseconds(3));
  metrics_.OnRequest("net", 1, absl::StatusCode::kOk, absl::Milliseconds(5));
  metrics_.OnRequest("net", 2, absl::StatusCode::kInvalidArgument, absl::Milliseconds(1));
  metrics_.OnRefusal("net", absl::StatusCode::kInvalidArgument, absl::Milliseconds(1));
  metrics_.OnBatch("net", 2, 3000, 1500);
  metrics_.OnStage("net", Stage::kFeatures, absl::Milliseconds(2));
  const ModelTotals totals = metrics_.TotalsOf("net");
  EXPECT_EQ(totals.successes.count, 2);
  EXPECT_DOUBLE_EQ(totals.successes.seconds, 0.008);
  EXPECT_EQ(totals.refusals.count, 1);
  EXPECT_EQ(totals.failures, 1);
  EXPECT_EQ(totals.batches, 1);
  EXPECT_DOUBLE_EQ(totals.stages.at(Stage::kFeatures).seconds, 0.002);
  EXPECT_GT(totals.last_success, absl::Now() - absl::Hours(1));
}

}  // namespace
}  // namespace voxserve::metrics_test
