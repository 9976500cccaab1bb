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
  return connection.Flags({
      StringFlag("model", "NAME", "The model that gets the scans; voxserve-client models lists the models. Required.",
                 &model),
      IntFlag("version", "N", "The model's version. Without this flag it is the newest that is ready.", 1, INT64_MAX,
              &version),
      IntFlag("concurrency", "N",
              "Closed loop: N callers send requests, each the next one when its last one is answered. Without this "
              "flag, --rate and --streams there is one caller.",
              1, 1024, &concurrency),
      NumberFlag("rate", "R",
                 "Open loop: the command sends R requests a second, whether or not earlier ones are answered. Latency "
                 "counts from the time at which a request was due.",
                 0.01, 1e6, &rate),
      ChoiceFlag("arrivals", {"constant", "poisson"},
                 "The requests of --rate come at constant intervals, or at random as a Poisson process.", &arrivals),
      IntFlag("seed", "N", "The seed of --arrivals poisson. Without this flag it is 1.", 0, INT64_MAX, &seed),
      IntFlag("streams", "N", "Streams: N vehicles send --frame_rate frames a second each.", 1, 1024, &num_streams),
      NumberFlag("frame_rate", "R", "Each stream sends R frames a second.", 0.01, 10000, &frame_rate),
      IntFlag("parts", "N",
              "A frame of --streams comes in N parts, which are sent evenly over the time between two frames. Latency "
              "counts from the last part. Without this flag frames are whole.",
              1, 1000, &num_parts),
      ChoiceFlag("policy", {"latest", "queue"},
                 "With latest a stream's newer frame replaces a frame that waits. With queue all frames are answered "
                 "in order.",
                 &policy),
      IntFlag("sweeps", "N", "The server runs the last N sweeps of each stream together. It needs --poses.", 1, 64,
              &num_sweeps),
      StringFlag("poses", "FILE",
                 "The file of the poses that --sweeps needs. It has a line for each scan: [FRAME] and the 12 values of "
                 "a 3x4 matrix. FRAME is the scan's name; without it the lines are in the order of the scans.",
                 &poses),
      StringFlag("age_feature", "NAME",
                 "The model's feature that --sweeps fills with a point's age. Without this flag no feature has it.",
                 &age_feature),
      DurationFlag("duration", "The command measures for this time.", &duration),
      DurationFlag("warm_up", "The command sends requests for this time before it measures; 0s is allowed.", &warm_up,
                   absl::ZeroDuration()),
      IntFlag("requests", "N", "The command ends after N measured requests, if --duration has not ended before.", 1,
              INT64_MAX, &max_requests),
      NumberFlag("stable", "PERCENT",
                 "The command ends early when throughput and p99 of the last 3 windows are within PERCENT of their "
                 "means. The result then covers these windows.",
                 0.1, 100, &stable_percent),
      DurationFlag("window", "A window of --stable has this length.", &window),
      IntFlag("channels", "N",
              "The command opens N connections. Without this flag it opens one for each caller or stream, at most 8, "
              "and 8 with --rate.",
              1, 256, &num_channels),
      IntFlag("priority", "N", "The requests have this priority; 0 is the most urgent.", 0, 15, &priority),
      ListFlag("fields", "SPEC", "The layout of the points in the file; see voxserve-client help infer for its form.",
               &fields),
      BoolFlag("compact", "The requests have coordinates and intensities in 16 bits: half the bytes.", &compact),
      StringFlag("json", "FILE", "The command also writes settings and results to this file, as JSON.", &json),
  });
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
  if (num_streams == 0 && num_parts != defaults.num_parts) return Missing("parts", "streams");
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
