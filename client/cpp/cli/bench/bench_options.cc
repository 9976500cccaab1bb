#include "client/cpp/cli/bench/bench_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/cpp/io/field_spec.h"

namespace voxserve::client {
namespace {

constexpr int64_t kMaxDefaultChannels = 8;

absl::Status Missing(absl::string_view flag, absl::string_view other) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, " needs --", other));
}

}  // namespace

std::vector<Flag> BenchOptions::Flags() {
  std::vector<Flag> flags = {
      StringFlag("model", "NAME", "The model to use; voxserve-client models lists them. Required.", &model),
      IntFlag("version", "N", "Its version. Default: the newest that is ready.", 1, INT64_MAX, &version),
      IntFlag("concurrency", "N",
              "Closed loop: N callers, each of which sends its next request when the last one is answered. "
              "Default: 1 caller.",
              1, 1024, &concurrency),
      NumberFlag("rate", "R",
                 "Open loop: R requests a second, whether or not earlier ones are answered. Latency counts from the "
                 "time at which a request was due.",
                 0.01, 1e6, &rate),
      ChoiceFlag("arrivals", {"constant", "poisson"}, "The intervals between requests of --rate. Default constant.",
                 &arrivals),
      IntFlag("seed", "N", "Seed for --arrivals poisson. Default 1.", 0, INT64_MAX, &seed),
      IntFlag("streams", "N", "Streams: N vehicles, each with --frame_rate frames a second.", 1, 1024, &num_streams),
      NumberFlag("frame_rate", "R", "Frames a second of each stream. Default 10.", 0.01, 10000, &frame_rate),
      ChoiceFlag("policy", {"latest", "queue"},
                 "latest: a newer frame of a stream replaces one that waits; queue: all are answered in order. "
                 "Default latest.",
                 &policy),
      IntFlag("sweeps", "N", "The server runs the last N sweeps of each stream together.", 1, 64, &num_sweeps),
      StringFlag("poses", "FILE",
                 "The poses that --sweeps needs: one line per scan, [FRAME] and the 12 values of a 3x4 matrix. FRAME "
                 "is the scan's name; without it, lines are in the order of the scans.",
                 &poses),
      StringFlag("age_feature", "NAME", "With --sweeps: the model's feature for a point's age. Default: none.",
                 &age_feature),
      DurationFlag("duration", "How long to measure. Default 10s.", &duration),
      DurationFlag("warm_up", "How long to send before measuring; may be 0s. Default 2s.", &warm_up,
                   /*may_be_zero=*/true),
      IntFlag("requests", "N", "Ends after N measured requests, if --duration has not ended before.", 1, INT64_MAX,
              &max_requests),
      NumberFlag("stable", "PERCENT",
                 "Ends early when throughput and p99 of the last 3 windows are within PERCENT of their means. The "
                 "result then covers these windows.",
                 0.1, 100, &stable_percent),
      DurationFlag("window", "Length of a window of --stable. Default 1s.", &window),
      IntFlag("channels", "N", "Connections. Default: one per caller or stream, at most 8; 8 with --rate.", 1, 256,
              &num_channels),
      IntFlag("priority", "N", "Priority of the requests; 0 (the default) is the most urgent.", 0, 15, &priority),
      StringFlag("fields", "SPEC", "Layout of the points; see infer.", &fields),
      StringFlag("json", "FILE", "Also writes settings and results as JSON.", &json),
  };
  for (Flag& flag : connection.Flags()) flags.push_back(std::move(flag));
  return flags;
}

absl::Status BenchOptions::Validate() const {
  if (model.empty()) return absl::InvalidArgumentError("--model is missing");
  if (paths.empty()) return absl::InvalidArgumentError("no scan given");
  if (!fields.empty()) {
    if (const auto spec = ParseFieldSpec(fields); !spec.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--fields: ", spec.status().message()));
    }
  }
  if ((concurrency > 0) + (rate > 0) + (num_streams > 0) > 1) {
    return absl::InvalidArgumentError("--concurrency, --rate and --streams are three kinds of load: choose one");
  }
  if (rate == 0 && is_poisson()) return Missing("arrivals", "rate");
  if (!is_poisson() && seed >= 0) return Missing("seed", "arrivals poisson");
  const BenchOptions defaults;
  if (num_streams == 0 && frame_rate != defaults.frame_rate) return Missing("frame_rate", "streams");
  if (num_streams == 0 && policy != defaults.policy) return Missing("policy", "streams");
  if (num_streams == 0 && num_sweeps > 0) return Missing("sweeps", "streams");
  if (num_sweeps > 0 && poses.empty()) return Missing("sweeps", "poses");
  if (num_sweeps == 0 && !poses.empty()) return Missing("poses", "sweeps");
  if (num_sweeps == 0 && !age_feature.empty()) return Missing("age_feature", "sweeps");
  for (const auto& [name, duration_of_flag] : {std::pair<absl::string_view, absl::Duration>{"duration", duration},
                                               {"warm_up", warm_up},
                                               {"window", window},
                                               {"timeout", connection.timeout}}) {
    if (duration_of_flag > absl::Hours(24)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " is '", absl::FormatDuration(duration_of_flag), "', must be at most 24h"));
    }
  }
  return absl::OkStatus();
}

LoadMode BenchOptions::mode() const {
  if (num_streams > 0) return LoadMode::kStreams;
  return rate > 0 ? LoadMode::kOpenLoop : LoadMode::kClosedLoop;
}

int BenchOptions::channels() const {
  if (num_channels > 0) return static_cast<int>(num_channels);
  const int64_t wanted[] = {num_callers(), kMaxDefaultChannels, num_streams};
  return static_cast<int>(std::min(wanted[static_cast<int>(mode())], kMaxDefaultChannels));
}

StreamOptions BenchOptions::stream_options() const {
  StreamOptions options = {.model = model,
                           .version = version,
                           .priority = static_cast<uint32_t>(priority),
                           .policy = policy == "latest" ? StreamPolicy::kLatest : StreamPolicy::kQueue,
                           .frame_timeout = connection.timeout};
  if (num_sweeps > 0) options.sweeps = SweepOptions{static_cast<int>(num_sweeps), age_feature, std::nullopt};
  return options;
}

}  // namespace voxserve::client
