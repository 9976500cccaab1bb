#include "client/cpp/cli/bench/bench_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/cli/printable.h"
#include "client/cpp/cli/progress_bar.h"
#include "client/cpp/cli/report.h"
#include "client/cpp/view/count_text.h"

namespace voxserve::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kNoticeableLag = absl::Milliseconds(1);
constexpr size_t kMaxStreamRows = 32;

double Ms(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

std::string Plural(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string FormatLatency(absl::string_view name, const LatencySummary& latency) {
  return absl::StrFormat("  %-18s %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n", name, Ms(latency.mean), Ms(latency.p50),
                         Ms(latency.p90), Ms(latency.p99), Ms(latency.p999), Ms(latency.max));
}

std::string FormatLatencies(const BenchOptions& options, const BenchSummary& summary) {
  std::string text = absl::StrFormat("\n  %-18s %9s %9s %9s %9s %9s %9s\n", "latency, ms", "mean", "p50", "p90", "p99",
                                     "p99.9", "max");
  const bool is_stream = options.mode() == LoadMode::kStreams;
  absl::StrAppend(&text, FormatLatency(is_stream ? "frame age" : "answered OK", summary.ok));
  if (summary.refused.count > 0) absl::StrAppend(&text, FormatLatency("refused by server", summary.refused));
  if (options.mode() != LoadMode::kClosedLoop && summary.behind.p99 >= kNoticeableLag) {
    absl::StrAppend(&text, FormatLatency("of it, sent late", summary.behind));
  }
  return text;
}

std::string FormatFailures(const BenchSummary& summary) {
  if (summary.failures.empty()) return "";
  std::string text =
      absl::StrFormat("\n  %-42s %9s %7s %9s %9s\n", "not answered OK", "requests", "share", "p50, ms", "p99, ms");
  for (const BenchOutcome& failure : summary.failures) {
    const std::string name = absl::StrCat(failure.code, failure.reason.empty() ? "" : " ", Printable(failure.reason),
                                          failure.is_from_server ? "" : " (client)");
    const double share = 100.0 * static_cast<double>(failure.count) / static_cast<double>(summary.num_requests);
    absl::StrAppendFormat(&text, "  %-42s %9s %6.1f%% %9.2f %9.2f\n", name, WithSeparators(failure.count), share,
                          Ms(failure.p50), Ms(failure.p99));
  }
  return text;
}

std::string FormatStages(const BenchSummary& summary) {
  if (summary.stages.empty()) return "";
  std::string text = absl::StrFormat("\n  %-18s %9s\n", "stage, mean", "ms");
  absl::Duration total;
  for (const auto& [name, duration] : summary.stages) {
    absl::StrAppendFormat(&text, "  %-18s %9.2f\n", Printable(name), Ms(duration));
    total += duration;
  }
  absl::StrAppendFormat(&text, "  %-18s %9.2f\n", "server", Ms(total));
  return text;
}

std::string FormatStreams(const BenchSummary& summary) {
  if (summary.streams.empty()) return "";
  std::string text = absl::StrFormat("\n  %-8s %8s %9s %11s %8s %12s %12s\n", "stream", "frames", "answered",
                                     "superseded", "failed", "age p50, ms", "age p99, ms");
  for (size_t i = 0; i < std::min(summary.streams.size(), kMaxStreamRows); ++i) {
    const StreamSummary& stream = summary.streams[i];
    absl::StrAppendFormat(&text, "  %-8d %8d %9d %11d %8d %12.2f %12.2f\n", i + 1, stream.num_frames,
                          stream.num_answered, stream.num_superseded, stream.num_failed, Ms(stream.age_p50),
                          Ms(stream.age_p99));
  }
  if (summary.streams.size() > kMaxStreamRows) {
    absl::StrAppend(&text, "  and ", summary.streams.size() - kMaxStreamRows, " more; --json has them all\n");
  }
  return text;
}

Json JsonOf(const LatencySummary& latency) {
  return {{"count", latency.count}, {"mean", Ms(latency.mean)}, {"p50", Ms(latency.p50)}, {"p90", Ms(latency.p90)},
          {"p99", Ms(latency.p99)}, {"p999", Ms(latency.p999)}, {"max", Ms(latency.max)}};
}

Json SettingsOf(const BenchOptions& options, const BenchInput& input) {
  Json settings = {{"model", options.model},
                   {"version", options.version},
                   {"address", options.connection.address},
                   {"scans", input.num_scans},
                   {"points_of_all_scans", input.num_points},
                   {"channels", options.channels()},
                   {"priority", options.priority},
                   {"timeout_ms", Ms(options.connection.timeout)},
                   {"warm_up_s", absl::ToDoubleSeconds(options.warm_up)},
                   {"duration_s", absl::ToDoubleSeconds(options.duration)},
                   {"max_requests", options.max_requests},
                   {"stable_percent", options.stable_percent},
                   {"window_s", absl::ToDoubleSeconds(options.window)}};
  switch (options.mode()) {
    case LoadMode::kClosedLoop:
      settings["mode"] = "closed_loop";
      settings["concurrency"] = options.num_callers();
      break;
    case LoadMode::kOpenLoop:
      settings["mode"] = "open_loop";
      settings["rate"] = options.rate;
      settings["arrivals"] = options.arrivals;
      if (options.is_poisson()) settings["seed"] = options.poisson_seed();
      break;
    case LoadMode::kStreams:
      settings["mode"] = "streams";
      settings["streams"] = options.num_streams;
      settings["frame_rate"] = options.frame_rate;
      settings["parts"] = options.num_parts;
      settings["policy"] = options.policy;
      settings["sweeps"] = options.num_sweeps;
      break;
  }
  return settings;
}

Json JsonOf(const absl::Status& status) {
  return {{"code", absl::StatusCodeToString(status.code())},
          {"reason", ErrorReason(status)},
          {"message", std::string(status.message())}};
}

}  // namespace

std::string DescribeLoad(const BenchOptions& options, const BenchInput& input) {
  std::string text;
  switch (options.mode()) {
    case LoadMode::kClosedLoop:
      text = absl::StrCat("closed loop, ", Plural(options.num_callers(), "caller"));
      break;
    case LoadMode::kOpenLoop:
      text = absl::StrFormat("open loop, %g requests/s, %s arrivals", options.rate, options.arrivals);
      break;
    case LoadMode::kStreams:
      text = absl::StrFormat("%s of %g frames/s, policy %s", Plural(options.num_streams, "stream"), options.frame_rate,
                             options.policy);
      if (options.num_parts > 1) absl::StrAppend(&text, ", frames in ", options.num_parts, " parts");
      if (options.num_sweeps > 0) absl::StrAppend(&text, ", ", options.num_sweeps, " sweeps");
      break;
  }
  return absl::StrCat(text, ", ", Plural(options.channels(), "connection"), "; ",
                      Plural(static_cast<int64_t>(input.num_scans), "scan"), " of ",
                      WithSeparators(input.num_scans == 0 ? 0 : input.num_points / input.num_scans), " points",
                      input.num_scans > 1 ? " on average" : "");
}

std::string FormatBench(const BenchOptions& options, const BenchInput& input, const BenchResult& result) {
  const BenchSummary& summary = result.summary;
  std::string text = absl::StrCat(DescribeLoad(options, input), "\n");
  for (const auto& [name, count] : summary.answered_by) {
    absl::StrAppend(&text, "  ", WithSeparators(count), " answered by ", Printable(name), "\n");
  }
  absl::StrAppendFormat(&text, "  measured for %.2f s", absl::ToDoubleSeconds(summary.measured));
  if (options.stable_percent > 0) {
    absl::StrAppend(&text, result.is_stable ? ": the last windows, which are stable" : ", did not become stable");
  }
  absl::StrAppendFormat(&text, "\n\n  %-18s %s, %s answered OK", "requests", WithSeparators(summary.num_requests),
                        WithSeparators(summary.ok.count));
  if (summary.num_superseded > 0) {
    absl::StrAppend(&text, ", ", WithSeparators(summary.num_superseded), " superseded by newer frames");
  }
  if (summary.num_not_sent > 0) {
    absl::StrAppend(&text, ", ", WithSeparators(summary.num_not_sent), " not sent (too many were in flight)");
  }
  absl::StrAppendFormat(&text, "\n  %-18s %.1f scans/s, %s points/s", "throughput", summary.scans_per_second,
                        WithSeparators(static_cast<uint64_t>(summary.points_per_second)));
  if (!summary.ok_per_second.empty()) {
    const auto [least, most] = std::minmax_element(summary.ok_per_second.begin(), summary.ok_per_second.end());
    absl::StrAppend(&text, "; ", *least, " to ", *most, " in each second");
  }
  absl::StrAppend(&text, "\n", FormatLatencies(options, summary), FormatFailures(summary), FormatStreams(summary),
                  FormatStages(summary));
  if (result.num_broken_streams > 0) {
    absl::StrAppend(&text, "\n  ", Plural(static_cast<int64_t>(result.num_broken_streams), "stream"),
                    " ended with an error: ", Printable(result.first_stream_error.message()), "\n");
  }
  return text;
}

std::string FormatBenchJson(const BenchOptions& options, const BenchInput& input, const BenchResult& result) {
  const BenchSummary& summary = result.summary;
  Json json = {{"settings", SettingsOf(options, input)},
               {"measured_s", absl::ToDoubleSeconds(summary.measured)},
               {"is_stable", result.is_stable},
               {"requests", summary.num_requests},
               {"ok", summary.ok.count},
               {"superseded", summary.num_superseded},
               {"not_sent", summary.num_not_sent},
               {"scans_per_second", summary.scans_per_second},
               {"points_per_second", summary.points_per_second},
               {"ok_per_second", summary.ok_per_second},
               {"latency_ms", JsonOf(summary.ok)},
               {"refused_ms", JsonOf(summary.refused)},
               {"sent_late_ms", JsonOf(summary.behind)}};
  Json failures = Json::array();
  for (const BenchOutcome& failure : summary.failures) {
    failures.push_back({{"code", failure.code},
                        {"reason", failure.reason},
                        {"from_server", failure.is_from_server},
                        {"count", failure.count},
                        {"p50_ms", Ms(failure.p50)},
                        {"p99_ms", Ms(failure.p99)}});
  }
  json["failures"] = std::move(failures);
  Json stages = Json::object();
  for (const auto& [name, duration] : summary.stages) stages[name] = Ms(duration);
  json["stages_ms"] = std::move(stages);
  json["answered_by"] = summary.answered_by;
  Json streams = Json::array();
  for (const StreamSummary& stream : summary.streams) {
    streams.push_back({{"frames", stream.num_frames},
                       {"answered", stream.num_answered},
                       {"superseded", stream.num_superseded},
                       {"failed", stream.num_failed},
                       {"age_p50_ms", Ms(stream.age_p50)},
                       {"age_p99_ms", Ms(stream.age_p99)}});
  }
  if (!streams.empty()) json["streams"] = std::move(streams);
  if (!result.first_failure.ok()) json["first_failure"] = JsonOf(result.first_failure);
  if (result.num_broken_streams > 0) {
    json["broken_streams"] = result.num_broken_streams;
    json["first_stream_error"] = JsonOf(result.first_stream_error);
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string FormatBenchProgress(const BenchProgress& progress) {
  std::string line = FormatFraction(progress.fraction);
  if (progress.is_warming_up) absl::StrAppend(&line, "  warming up");
  absl::StrAppendFormat(&line, "  %.1f scans/s  p99 %s  %d in flight", progress.last_second.scans_per_second,
                        FormatTime(progress.last_second.p99), progress.num_under_way);
  if (progress.num_failed > 0) absl::StrAppend(&line, "  ", WithSeparators(progress.num_failed), " failed");
  return line;
}

}  // namespace voxserve::client
