#include "client/cpp/cli/bench/bench_recorder.h"

#include "client/cpp/api/error.h"
#include "client/cpp/cli/bench/bench_report.h"
#include "gmock/gmock.h"

namespace voxserve::client::bench_recorder_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

BenchRequest Due(double seconds, size_t stream = 0) { return {At(seconds), At(seconds + 0.001), 100, stream}; }

absl::Status Refusal() { return WithReason(absl::ResourceExhaustedError("full"), "QUEUE_FULL"); }

class BenchRecorderTest : public testing::Test {
 protected:
  void Answer(double due, double ended, size_t stream = 0) {
    recorder_.AddAnswer(Due(due, stream), At(ended), NameAnswerer("m", 2, "cpu"),
                        {{"decode", absl::Milliseconds(1)}, {"features", absl::Milliseconds(3)}});
  }

  BenchRecorder recorder_;
};

TEST_F(BenchRecorderTest, LatencyIsOfWhatWasDueAndThroughputOfWhatEnded) {
  Answer(-1, 0.5);   // due in the warm-up, answered while measuring
  Answer(0, 1);      // due and answered while measuring
  Answer(1.5, 1.6);  // due and answered while measuring
  Answer(1.9, 9);    // answered after the end, but a slow answer counts too
  Answer(2, 2.1);    // neither due nor answered while measuring
  const BenchSummary summary = recorder_.Summarise(At(0), At(2), 0);
  EXPECT_EQ(summary.measured, absl::Seconds(2));
  EXPECT_EQ(summary.num_requests, 3u);
  EXPECT_EQ(summary.ok.count, 3u);
  EXPECT_EQ(summary.ok.p50, absl::Seconds(1));
  EXPECT_EQ(summary.ok.max, At(9) - At(1.9));
  EXPECT_EQ(summary.scans_per_second, 1.5);
  EXPECT_EQ(summary.points_per_second, 150);
  EXPECT_THAT(summary.ok_per_second, ElementsAre(1u, 2u));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(summary.behind.max), 1, 1e-3);
  EXPECT_THAT(summary.stages,
              ElementsAre(Pair("decode", absl::Milliseconds(1)), Pair("features", absl::Milliseconds(3))));
  EXPECT_THAT(summary.answered_by, ElementsAre(Pair("m version 2 on cpu", 3u)));
}

TEST_F(BenchRecorderTest, TellsRefusalsFromTheClientsOwnFailures) {
  absl::Status from_server = absl::DeadlineExceededError("cannot be met");
  from_server.SetPayload("type.googleapis.com/google.rpc.ErrorInfo", absl::Cord(std::string("\x0a\x0a"
                                                                                            "UNMEETABLE"
                                                                                            "\x12\x08"
                                                                                            "voxserve")));
  ASSERT_EQ(ErrorReason(from_server), "UNMEETABLE");
  ASSERT_TRUE(IsFromServer(from_server));
  Answer(0, 0.1);
  recorder_.AddFailure(Due(0.1), At(0.102), from_server);
  recorder_.AddFailure(Due(0.2), At(0.204), from_server);
  recorder_.AddFailure(Due(0.3), At(0.35), WithReason(absl::DeadlineExceededError("late"), kClientTimeout));
  recorder_.AddFailure({At(0.4), At(0.4), 100, 0}, At(0.4), WithReason(absl::ResourceExhaustedError("many"), kNotSent));
  const BenchSummary summary = recorder_.Summarise(At(0), At(1), 0);
  EXPECT_EQ(summary.num_requests, 5u);
  EXPECT_EQ(summary.ok.count, 1u);
  EXPECT_EQ(summary.num_not_sent, 1u);
  EXPECT_EQ(summary.behind.count, 4u);
  EXPECT_EQ(summary.refused.count, 2u);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(summary.refused.p50), 2, 1e-3);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(summary.refused.p99), 4, 1e-3);
  ASSERT_EQ(summary.failures.size(), 3u);
  EXPECT_EQ(summary.failures[0].code, "DEADLINE_EXCEEDED");
  EXPECT_EQ(summary.failures[0].reason, "UNMEETABLE");
  EXPECT_EQ(summary.failures[0].count, 2u);
  EXPECT_TRUE(summary.failures[0].is_from_server);
  EXPECT_FALSE(summary.failures[1].is_from_server);
  EXPECT_EQ(recorder_.num_failed(), 4u);
  EXPECT_EQ(recorder_.first_failure(), from_server);
}

TEST_F(BenchRecorderTest, SumsUpStreams) {
  Answer(0, 0.01, 0);
  Answer(0.1, 0.13, 0);
  Answer(0, 0.05, 1);
  recorder_.AddFailure(Due(0.1, 1), At(0.2), WithReason(absl::AbortedError("newer"), kSuperseded));
  recorder_.AddFailure(Due(0.2, 1), At(0.2), Refusal());
  const BenchSummary summary = recorder_.Summarise(At(0), At(1), 3);
  ASSERT_EQ(summary.streams.size(), 3u);
  EXPECT_EQ(summary.streams[0].num_answered, 2u);
  EXPECT_EQ(summary.streams[0].age_p99, At(0.13) - At(0.1));
  EXPECT_EQ(summary.streams[1].num_frames, 3u);
  EXPECT_EQ(summary.streams[1].num_superseded, 1u);
  EXPECT_EQ(summary.streams[1].num_failed, 1u);
  EXPECT_EQ(summary.streams[2].num_frames, 0u);
  EXPECT_EQ(summary.refused.count, 0u);
}

TEST_F(BenchRecorderTest, SupersededFramesAreNoFailures) {
  const absl::Status superseded = WithReason(absl::AbortedError("newer"), kSuperseded);
  recorder_.AddFailure(Due(0), At(0.1), superseded);
  recorder_.AddFailure(Due(0.1), At(0.2), superseded);
  BenchResult result;
  result.summary = recorder_.Summarise(At(0), At(1), 1);
  result.first_failure = recorder_.first_failure();
  EXPECT_EQ(result.summary.num_superseded, 2u);
  EXPECT_TRUE(result.summary.failures.empty());
  EXPECT_EQ(recorder_.num_failed(), 0u);
  EXPECT_TRUE(result.first_failure.ok());
  EXPECT_THAT(std::string(VerdictOn(result).message()), HasSubstr("every frame was superseded"));

  recorder_.AddFailure(Due(0.2), At(0.2), Refusal());
  result.first_failure = recorder_.first_failure();
  EXPECT_EQ(recorder_.num_failed(), 1u);
  EXPECT_EQ(VerdictOn(result), Refusal());
  Answer(0.3, 0.4);
  result.summary = recorder_.Summarise(At(0), At(1), 1);
  EXPECT_TRUE(VerdictOn(result).ok());
  ASSERT_EQ(result.summary.failures.size(), 1u);
  EXPECT_EQ(result.summary.failures[0].reason, "QUEUE_FULL");
  BenchOptions options;
  options.num_streams = 1;
  EXPECT_THAT(FormatBench(options, {}, result),
              AllOf(HasSubstr("4, 1 answered OK, 2 superseded by newer frames"), Not(HasSubstr("ABORTED"))));
  EXPECT_THAT(FormatBenchJson(options, {}, result), HasSubstr("\"superseded\": 2,"));
}

TEST_F(BenchRecorderTest, WindowsAreOfWhatEndedInThem) {
  Answer(0, 0.5);
  Answer(0.9, 1.1);
  Answer(1.0, 1.4);
  recorder_.AddFailure(Due(1.2), At(1.5), Refusal());
  const WindowSummary window = recorder_.Window(At(1), At(3));
  EXPECT_EQ(window.scans_per_second, 1);
  EXPECT_EQ(window.p99, At(1.4) - At(1.0));
  EXPECT_EQ(recorder_.Window(At(5), At(6)).scans_per_second, 0);
  EXPECT_EQ(recorder_.last_ended(), At(1.5));
}

TEST_F(BenchRecorderTest, NothingIsASummaryToo) {
  const BenchSummary summary = recorder_.Summarise(At(0), At(0), 1);
  EXPECT_EQ(summary.num_requests, 0u);
  EXPECT_EQ(summary.scans_per_second, 0);
  EXPECT_EQ(recorder_.last_ended(), absl::InfinitePast());
  BenchResult result;
  result.summary = summary;
  BenchOptions options;
  EXPECT_THAT(FormatBench(options, {}, result), HasSubstr("0, 0 answered OK\n"));
  EXPECT_THAT(std::string(VerdictOn(result).message()), HasSubstr("no request was due"));
}

TEST_F(BenchRecorderTest, ProgressIsOneLine) {
  EXPECT_EQ(
      FormatBenchProgress({.fraction = 0.5, .last_second = {812.34, absl::Microseconds(9800)}, .num_under_way = 8}),
      "[###############...............]  50%  812.3 scans/s  p99 9.8 ms  8 in flight");
  EXPECT_THAT(FormatBenchProgress({.is_warming_up = true, .num_failed = 1234}),
              testing::AllOf(HasSubstr("warming up"), HasSubstr("1,234 failed")));
}

}  // namespace
}  // namespace voxserve::client::bench_recorder_test
