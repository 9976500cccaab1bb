#include "client/cpp/cli/bench/bench_options.h"

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"

namespace voxserve::client::bench_options_test {
namespace {

using ::testing::HasSubstr;

absl::Status Parse(absl::string_view line, BenchOptions* options) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  if (absl::Status status = ParseFlags(words, options->Flags(), &options->paths); !status.ok()) return status;
  return options->Validate();
}

BenchOptions Parsed(absl::string_view line) {
  BenchOptions options;
  const absl::Status status = Parse(line, &options);
  EXPECT_TRUE(status.ok()) << line << ": " << status;
  return options;
}

TEST(BenchOptionsTest, OneCallerIsTheDefault) {
  const BenchOptions options = Parsed("--model m scan.bin");
  EXPECT_EQ(options.mode(), LoadMode::kClosedLoop);
  EXPECT_EQ(options.num_callers(), 1);
  EXPECT_EQ(options.channels(), 1);
  EXPECT_EQ(options.duration, absl::Seconds(10));
  EXPECT_EQ(options.warm_up, absl::Seconds(2));
}

TEST(BenchOptionsTest, ReadsTheThreeKindsOfLoad) {
  const BenchOptions closed = Parsed("--model m a b --concurrency 16 --warm_up 0s --duration 500ms --stable 5");
  EXPECT_EQ(closed.mode(), LoadMode::kClosedLoop);
  EXPECT_EQ(closed.num_callers(), 16);
  EXPECT_EQ(closed.channels(), 8);
  EXPECT_EQ(closed.warm_up, absl::ZeroDuration());
  EXPECT_EQ(closed.stable_percent, 5);
  EXPECT_EQ(closed.paths.size(), 2u);
  const BenchOptions open = Parsed("--model m a --rate 12.5 --arrivals poisson --seed 0 --timeout 50ms --requests 9");
  EXPECT_EQ(open.mode(), LoadMode::kOpenLoop);
  EXPECT_EQ(open.rate, 12.5);
  EXPECT_TRUE(open.is_poisson());
  EXPECT_EQ(open.poisson_seed(), 0u);
  EXPECT_EQ(Parsed("--model m a --rate 1 --arrivals poisson").poisson_seed(), 1u);
  EXPECT_EQ(open.connection.timeout, absl::Milliseconds(50));
  EXPECT_EQ(open.max_requests, 9);
  EXPECT_EQ(open.channels(), 8);
  const BenchOptions streams = Parsed(
      "--model m a --streams 3 --frame_rate 20 --policy queue --sweeps 5 --poses p.txt --age_feature age --priority 2 "
      "--version 4");
  EXPECT_EQ(streams.mode(), LoadMode::kStreams);
  EXPECT_EQ(streams.channels(), 3);
  const StreamOptions stream = streams.stream_options();
  EXPECT_TRUE(stream.Validate().ok());
  EXPECT_EQ(stream.policy, StreamPolicy::kQueue);
  EXPECT_EQ(stream.version, 4);
  EXPECT_EQ(stream.priority, 2u);
  ASSERT_TRUE(stream.sweeps.has_value());
  EXPECT_EQ(stream.sweeps->num_sweeps, 5);
  EXPECT_EQ(stream.sweeps->age_feature, "age");
  EXPECT_FALSE(Parsed("--model m a --streams 1").stream_options().sweeps.has_value());
  EXPECT_EQ(Parsed("--model m a --streams 1").stream_options().policy, StreamPolicy::kLatest);
  EXPECT_EQ(Parsed("--model m a --streams 9 --channels 12").channels(), 12);
}

TEST(BenchOptionsTest, RefusesWhatCannotBeMeant) {
  for (const auto& [line, complaint] : std::vector<std::pair<std::string, std::string>>{
           {"a", "--model is missing"},
           {"--model m", "no scan given"},
           {"--model m a --concurrency 0", "--concurrency is '0'"},
           {"--model m a --rate 0", "--rate is '0'"},
           {"--model m a --rate nan", "--rate is 'nan'"},
           {"--model m a --rate fast", "--rate is 'fast'"},
           {"--model m a --rate 1 --concurrency 1", "choose one"},
           {"--model m a --rate 1 --streams 1", "choose one"},
           {"--model m a --streams 1 --concurrency 1", "choose one"},
           {"--model m a --rate 1 --arrivals sometimes", "must be constant or poisson"},
           {"--model m a --arrivals poisson", "--arrivals needs --rate"},
           {"--model m a --rate 1 --seed 5", "--seed needs --arrivals poisson"},
           {"--model m a --policy queue", "--policy needs --streams"},
           {"--model m a --streams 1 --policy newest", "must be latest or queue"},
           {"--model m a --frame_rate 5", "--frame_rate needs --streams"},
           {"--model m a --parts 10", "--parts needs --streams"},
           {"--model m a --streams 1 --parts 0", "--parts is '0'"},
           {"--model m a --sweeps 5 --poses p", "--sweeps needs --streams"},
           {"--model m a --streams 1 --sweeps 5", "--sweeps needs --poses"},
           {"--model m a --streams 1 --poses p", "--poses needs --sweeps"},
           {"--model m a --streams 1 --age_feature age", "--age_feature needs --sweeps"},
           {"--model m a --streams 1 --sweeps 65 --poses p", "--sweeps is '65'"},
           {"--model m a --duration 0s", "--duration is '0s'"},
           {"--model m a --warm_up -1s", "--warm_up is '-1s'"},
           {"--model m a --duration inf", "--duration is 'inf', must be at most 24h"},
           {"--model m a --timeout inf", "--timeout is 'inf', must be at most 24h"},
           {"--model m a --requests 0", "--requests is '0'"},
           {"--model m a --stable 0", "--stable is '0'"},
           {"--model m a --fields x:q", "--fields"},
           {"--model m a --burst 3", "unknown flag --burst"}}) {
    BenchOptions options;
    const absl::Status status = Parse(line, &options);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr(complaint)) << line;
  }
}

}  // namespace
}  // namespace voxserve::client::bench_options_test
