// Tests ReadBenchScans and RunBench, the load generator of `voxserve-client bench`, against FakeServer: what is sent,
// what is measured, and that each run ends.

#include "client/cpp/cli/bench/bench_run.h"

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/cli/bench/bench_load.h"
#include "client/cpp/cli/bench/bench_report.h"
#include "gmock/gmock.h"
#include "tests/client/fake_server.h"
#include "tests/client/temporary_folder.h"
#include "tests/support/await_true.h"

namespace voxserve::client::bench_run_test {
namespace {

using ::testing::HasSubstr;

class BenchRunTest : public testing::Test {
 protected:
  BenchRunTest() {
    for (int i = 1; i <= 3; ++i) Scan(absl::StrCat("drive/", i, ".bin"), 10 * i);
    options_.model = "segmenter";
    options_.connection.address = server_.address();
    options_.paths = {folder_.path() + "/drive"};
    options_.warm_up = absl::ZeroDuration();
    options_.duration = absl::Minutes(4);  // so long that max_requests ends each run first
    options_.max_requests = 30;
  }

  void Scan(const std::string& name, int num_points) const {
    std::filesystem::create_directories(folder_.path() + "/drive");
    std::string bytes;
    for (int i = 0; i < num_points; ++i) bytes += Bytes(1.0f) + Bytes(0.0f) + Bytes(0.0f) + Bytes(0.5f);
    folder_.Write(name, bytes);
  }

  BenchResult Run() {
    options_.connection.num_channels = options_.channels();
    const std::shared_ptr<Channels> channels = *Channels::Create(*options_.connection.ToOptions());
    absl::StatusOr<std::vector<BenchScan>> scans = ReadBenchScans(options_, *channels);
    EXPECT_TRUE(scans.ok()) << scans.status();
    if (!scans.ok()) return {};
    absl::StatusOr<BenchResult> result = RunBench(options_, channels, *scans, nullptr);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : BenchResult();
  }

  TemporaryFolder folder_;
  FakeServer server_;
  BenchOptions options_;
};

TEST_F(BenchRunTest, ModelsWithBoxesAreModels) {
  options_.model = "detector";
  const BenchResult calls = Run();
  EXPECT_EQ(calls.summary.num_requests, 30u);
  EXPECT_EQ(calls.summary.ok.count, 30u);
  options_.num_streams = 2;
  options_.frame_rate = 500;
  options_.policy = "queue";
  const BenchResult frames = Run();
  EXPECT_GT(frames.summary.ok.count, 0u);
  EXPECT_EQ(frames.num_broken_streams, 0u);
  options_.model = "mute";
  EXPECT_EQ(Run().summary.ok.count, 0u) << "an answer with neither labels nor boxes is none";
}

TEST_F(BenchRunTest, ClosedLoopKeepsItsCallersBusyAndSendsEveryScan) {
  options_.concurrency = 4;
  const BenchResult result = Run();
  const BenchSummary& summary = result.summary;
  EXPECT_EQ(summary.num_requests, 30u);
  EXPECT_EQ(summary.ok.count, 30u);
  EXPECT_TRUE(summary.failures.empty());
  EXPECT_GT(summary.ok.p50, absl::ZeroDuration());
  EXPECT_GT(summary.scans_per_second, 0);
  // Scans of 10, 20 and 30 points take turns, so a scan has 20 points on average.
  EXPECT_NEAR(summary.points_per_second / summary.scans_per_second, 20, 1e-6);
  ASSERT_EQ(summary.stages.size(), 2u);
  EXPECT_EQ(summary.stages[1].first, "features");
  EXPECT_NEAR(absl::ToDoubleMilliseconds(summary.stages[1].second), 2.5, 1e-3);
  EXPECT_EQ(summary.answered_by.at("segmenter version 2 on cpu"), 30u);
  EXPECT_LE(server_.max_concurrent_calls(), 4u);
  EXPECT_EQ(server_.num_connections(), 4u);
  EXPECT_EQ(server_.last_request().cloud().fields_size(), 4);
}

TEST_F(BenchRunTest, WarmUpIsNotMeasured) {
  options_.warm_up = absl::Milliseconds(50);
  options_.version = 1;
  const BenchResult result = Run();
  EXPECT_EQ(result.summary.num_requests, 30u);
  EXPECT_EQ(result.summary.answered_by.at("segmenter version 1 on cpu"), 30u);
  EXPECT_GT(server_.num_infer_calls(), 30u);
}

TEST_F(BenchRunTest, OpenLoopSendsWhatIsDue) {
  options_.rate = 2000;
  for (const char* arrivals : {"constant", "poisson"}) {
    options_.arrivals = arrivals;
    const BenchResult result = Run();
    EXPECT_EQ(result.summary.num_requests, 30u);
    EXPECT_EQ(result.summary.ok.count, 30u);
    EXPECT_EQ(result.summary.behind.count, 30u);
  }
}

TEST_F(BenchRunTest, OpenLoopDoesNotWaitForAnswersAndCountsFromWhenTheyWereDue) {
  options_.model = "slow";
  options_.rate = 1000;
  options_.max_requests = 20;
  options_.connection.timeout = absl::Seconds(1);
  const BenchResult result = Run();
  ASSERT_EQ(result.summary.failures.size(), 1u);
  EXPECT_EQ(result.summary.failures[0].reason, kClientTimeout);
  EXPECT_EQ(result.summary.failures[0].count, 20u);
  EXPECT_FALSE(result.summary.failures[0].is_from_server);
  EXPECT_EQ(result.summary.refused.count, 0u);
  EXPECT_GT(server_.max_concurrent_calls(), 1u);
  EXPECT_EQ(ErrorReason(result.first_failure), kClientTimeout);
}

TEST_F(BenchRunTest, OpenLoopReportsWhatItDidNotSend) {
  options_.model = "slow";
  options_.rate = 1000;
  const std::shared_ptr<Channels> shared = *Channels::Create(*options_.connection.ToOptions());
  Channels& channels = *shared;
  const absl::StatusOr<std::vector<BenchScan>> scans = ReadBenchScans(options_, channels);
  ASSERT_TRUE(scans.ok()) << scans.status();
  BenchRecorder recorder;
  RequestSender sender(&channels, &*scans, absl::Seconds(1), &recorder);
  OpenLoop load(ArrivalSchedule::Constant(1e6), /*max_under_way=*/2, &sender);  // 1e6 scans/s: all 10 are due at once
  const absl::Time start = absl::Now();
  load.Start({start, 10});
  EXPECT_TRUE(support::AwaitTrue([&] { return load.is_exhausted(); }));
  load.Stop();
  const BenchSummary summary = recorder.Summarise(start, absl::Now(), 0);
  EXPECT_EQ(summary.num_requests, 10u);
  EXPECT_EQ(summary.num_not_sent, 8u);
  EXPECT_EQ(summary.behind.count, 2u);
  EXPECT_EQ(server_.max_concurrent_calls(), 2u);
}

// Two requests are sent at a time: the first send does not return before the second has begun.
TEST(ScheduledLoadTest, ThreadsSendAtTheSameTime) {
  class TwoAtATime : public ScheduledLoad {
   public:
    TwoAtATime() : ScheduledLoad(ArrivalSchedule::Constant(1e6), /*num_threads=*/2) {}
    ~TwoAtATime() override { Stop(); }
    int64_t num_under_way() const override { return 0; }
    std::atomic<int> num_begun{0}, num_together{0};

   protected:
    void SendDue(absl::Time) override {
      const int pair = num_begun++ / 2;
      if (support::AwaitTrue([&] { return num_begun >= 2 * (pair + 1); })) ++num_together;
    }
    void AwaitAll() override {}
  };
  TwoAtATime load;
  load.Start({absl::Now(), 10});
  EXPECT_TRUE(support::AwaitTrue([&] { return load.is_exhausted(); }));
  load.Stop();
  EXPECT_EQ(load.num_begun, 10);
  EXPECT_EQ(load.num_together, 10);
}

TEST_F(BenchRunTest, StreamsSendStampedFramesInTurn) {
  options_.num_streams = 2;
  options_.frame_rate = 500;
  options_.policy = "queue";
  const BenchResult result = Run();
  const BenchSummary& summary = result.summary;
  EXPECT_EQ(summary.num_requests, 30u);
  ASSERT_EQ(summary.streams.size(), 2u);
  for (const StreamSummary& stream : summary.streams) {
    EXPECT_EQ(stream.num_frames, 15u);
    EXPECT_EQ(stream.num_answered + stream.num_failed, 15u);
    EXPECT_EQ(stream.num_superseded, 0u);
  }
  EXPECT_GT(summary.ok.count, 0u);
  EXPECT_EQ(result.num_broken_streams, 0u) << result.first_stream_error;
  const std::vector<v1::StreamFrame> frames = server_.frames();
  ASSERT_FALSE(frames.empty());
  for (const v1::StreamFrame& frame : frames) {
    EXPECT_GT(frame.cloud().stamp().seconds(), 1'600'000'000);
    EXPECT_FALSE(frame.has_pose());
    EXPECT_EQ(frame.cloud().data().size(), frame.cloud().num_points() * 16);
  }
}

TEST_F(BenchRunTest, FramesMayComeInParts) {
  options_.num_streams = 2;
  options_.frame_rate = 100;
  options_.num_parts = 4;
  options_.policy = "queue";
  const BenchResult result = Run();
  EXPECT_EQ(result.summary.num_requests, 30u);
  EXPECT_GT(result.summary.ok.count, 0u);
  EXPECT_EQ(result.num_broken_streams, 0u) << result.first_stream_error;
  uint64_t num_last = 0;
  for (const v1::FramePart& part : server_.parts()) {
    EXPECT_EQ(part.is_last(), part.index() == 3);
    EXPECT_EQ(part.cloud().has_stamp(), part.is_last());
    EXPECT_EQ(part.cloud().data().size(), part.cloud().num_points() * 16);
    num_last += part.is_last() ? 1 : 0;
  }
  EXPECT_GE(num_last, result.summary.ok.count);
  for (const v1::StreamFrame& frame : server_.frames()) {  // the server puts the parts together
    EXPECT_TRUE(frame.cloud().num_points() == 10 || frame.cloud().num_points() == 20 ||
                frame.cloud().num_points() == 30)
        << frame.cloud().num_points();
  }
}

TEST_F(BenchRunTest, StreamsOfSweepsHavePosesAndResetAtEachRound) {
  options_.num_streams = 1;
  options_.frame_rate = 500;
  options_.policy = "queue";
  options_.num_sweeps = 2;
  options_.max_requests = 7;
  options_.poses =
      folder_.Write("poses.txt", "3 1 0 0 30 0 1 0 0 0 0 1 0\n1 1 0 0 10 0 1 0 0 0 0 1 0\n2 1 0 0 20 0 1 0 0 0 0 1 0");
  const BenchResult result = Run();
  EXPECT_EQ(result.summary.num_requests, 7u);
  EXPECT_EQ(server_.last_stream_config().sweeps().num_sweeps(), 2u);
  for (const v1::StreamFrame& frame : server_.frames()) {
    EXPECT_EQ(frame.pose().x(), static_cast<double>(frame.cloud().num_points()));  // 10, 20, 30: see poses.txt
    EXPECT_EQ(frame.reset_sweeps(), frame.cloud().num_points() == 10);
  }
}

TEST_F(BenchRunTest, PosesMustFitTheScans) {
  const std::shared_ptr<Channels> shared = *Channels::Create(*options_.connection.ToOptions());
  const Channels& channels = *shared;
  options_.num_streams = 1;
  options_.num_sweeps = 2;
  options_.poses = folder_.Write("two.txt", "1 0 0 0 0 1 0 0 0 0 1 0\n1 0 0 0 0 1 0 0 0 0 1 0");
  EXPECT_THAT(std::string(ReadBenchScans(options_, channels).status().message()),
              HasSubstr("2 poses without names for 3 scans"));
  options_.poses = folder_.Write("named.txt", "1 1 0 0 0 0 1 0 0 0 0 1 0");
  EXPECT_THAT(std::string(ReadBenchScans(options_, channels).status().message()), HasSubstr("no pose of frame 2"));
}

TEST_F(BenchRunTest, CountsWhatTheServerRefuses) {
  options_.model = "full";
  options_.concurrency = 2;
  const BenchResult result = Run();
  EXPECT_EQ(result.summary.ok.count, 0u);
  EXPECT_EQ(result.summary.refused.count, 30u);
  ASSERT_EQ(result.summary.failures.size(), 1u);
  EXPECT_EQ(result.summary.failures[0].reason, "QUEUE_FULL");
  options_.concurrency = 0;
  options_.num_streams = 2;
  options_.frame_rate = 500;
  const BenchResult streams = Run();
  EXPECT_EQ(streams.summary.ok.count, 0u);
  EXPECT_EQ(streams.summary.streams[0].num_failed + streams.summary.streams[0].num_superseded, 15u);
}

TEST_F(BenchRunTest, ChecksEveryAnswer) {
  options_.model = "liar";
  const BenchResult result = Run();
  ASSERT_EQ(result.summary.failures.size(), 1u);
  EXPECT_EQ(result.summary.failures[0].reason, kMalformedResponse);
}

TEST_F(BenchRunTest, CallersWaitWhereThereIsNoServer) {
  options_.connection.address = UnusedAddress();
  options_.max_requests = 5;
  const BenchResult result = Run();
  ASSERT_EQ(result.summary.failures.size(), 1u);
  EXPECT_EQ(result.summary.failures[0].reason, kNoServer);
  EXPECT_EQ(result.summary.failures[0].count, 5u);
}

TEST_F(BenchRunTest, EndsOnceItIsStable) {
  options_.max_requests = 0;
  options_.window = absl::Milliseconds(30);
  options_.stable_percent = 100;  // the p99 and throughput of all windows are within 100% of their means
  const BenchResult result = Run();
  EXPECT_TRUE(result.is_stable);
  EXPECT_EQ(result.summary.measured, absl::Milliseconds(90));
  EXPECT_GT(result.summary.num_requests, 0u);
}

TEST_F(BenchRunTest, SaysItAllAsTextAndAsJson) {
  options_.num_streams = 2;
  options_.frame_rate = 500;
  options_.policy = "queue";
  const BenchResult result = Run();
  const BenchInput input = {3, 60};
  const std::string text = FormatBench(options_, input, result);
  EXPECT_THAT(text,
              HasSubstr("2 streams of 500 frames/s, policy queue, 2 connections; 3 scans of 20 points on average"));
  EXPECT_THAT(text, HasSubstr("answered by segmenter version 2 on cpu"));
  EXPECT_THAT(text, testing::ContainsRegex("requests +30, "));
  EXPECT_THAT(text, testing::ContainsRegex("throughput +[0-9.]+ scans/s"));
  EXPECT_THAT(text, testing::ContainsRegex("frame age +[0-9.]+ +[0-9.]+"));
  EXPECT_THAT(text, testing::ContainsRegex("features +2.50"));
  const nlohmann::json json = nlohmann::json::parse(FormatBenchJson(options_, input, result));
  EXPECT_EQ(json["settings"]["mode"], "streams");
  EXPECT_EQ(json["settings"]["frame_rate"], 500);
  EXPECT_EQ(json["requests"], 30);
  EXPECT_EQ(json["streams"].size(), 2u);
  EXPECT_EQ(json["ok"], json["latency_ms"]["count"]);
  EXPECT_EQ(json["stages_ms"]["decode"], 0.1);
}

}  // namespace
}  // namespace voxserve::client::bench_run_test
