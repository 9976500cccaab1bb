#include "server/http/status_page.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/serving/admission/drop_reason.h"
#include "engine/tensor/stage.h"
#include "server/http/status_page_assets.h"

namespace voxserve {
namespace {

// Formats with 3 significant digits and a suitable unit.
std::string Milliseconds(double seconds) {
  const double value = seconds * 1e3;
  if (value <= 0) return "&ndash;";
  if (value < 10) return absl::StrFormat("%.2f ms", value);
  if (value < 100) return absl::StrFormat("%.1f ms", value);
  if (value < 1'000) return absl::StrFormat("%.0f ms", value);
  return absl::StrFormat("%.2f s", value / 1e3);
}

std::string Count(int64_t value) {
  if (value < 10'000) return absl::StrCat(value);
  if (value < 1'000'000) return absl::StrFormat("%.1f k", static_cast<double>(value) / 1e3);
  return absl::StrFormat("%.2f M", static_cast<double>(value) / 1e6);
}

std::string Bytes(int64_t bytes) {
  const double megabytes = static_cast<double>(bytes) / 1e6;
  return megabytes < 1'000 ? absl::StrFormat("%.1f MB", megabytes) : absl::StrFormat("%.2f GB", megabytes / 1e3);
}

std::string Uptime(absl::Duration uptime) {
  const int64_t seconds = absl::ToInt64Seconds(uptime);
  if (seconds < 60) return absl::StrCat(seconds, " s");
  if (seconds < 3600) return absl::StrCat(seconds / 60, " min ", seconds % 60, " s");
  if (seconds < 86400) return absl::StrCat(seconds / 3600, " h ", seconds / 60 % 60, " min");
  return absl::StrCat(seconds / 86400, " d ", seconds / 3600 % 24, " h");
}

std::string Pill(std::string_view css_class, std::string_view text) {
  return absl::StrFormat("<span class=\"pill %s\">%s</span>", std::string(css_class), HtmlEscaped(text));
}

std::string Tile(const std::string& value, const char* what) {
  return absl::StrCat("<div class=\"tile num\"><b>", value, "</b><span>", what, "</span></div>");
}

// Draws the frames per second of the last minute, the newest at the right.
std::string Sparkline(const std::vector<int64_t>& history) {
  constexpr int kHeight = 56;
  const int64_t peak = std::max<int64_t>(1, *std::max_element(history.begin(), history.end()));
  std::string points;
  for (size_t i = 0; i < history.size(); ++i) {
    const double y = (kHeight - 4) * (1.0 - static_cast<double>(history[i]) / static_cast<double>(peak)) + 2;
    absl::StrAppendFormat(&points, "%d,%.1f ", i * 10, y);
  }
  const size_t width = (history.size() - 1) * 10;
  return absl::StrFormat(
      "<svg viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"frames a second, last "
      "minute\">"
      "<polygon points=\"0,%d %s%d,%d\" fill=\"var(--accent)\" opacity=\".14\"/>"
      "<polyline points=\"%s\" fill=\"none\" stroke=\"var(--accent)\" stroke-width=\"2\" "
      "vector-effect=\"non-scaling-stroke\"/></svg>"
      "<div class=\"dim small\">frames a second, last minute; peak %d</div>",
      width, kHeight, kHeight, points, width, kHeight, points, peak);
}

std::string Stages(const std::vector<std::pair<Stage, Distribution>>& stages) {
  double longest = 0;
  for (const auto& [stage, seconds] : stages) longest = std::max(longest, seconds.mean);
  if (longest == 0) return "";
  std::string html =
      "<h3>Time of each stage</h3><table class=\"num\"><tr><th></th><th class=\"wide\"></th><th>mean</th><th>p50</th>"
      "<th>p95</th><th>p99</th></tr>";
  for (const auto& [stage, seconds] : stages) {
    absl::StrAppendFormat(&html,
                          "<tr><td>%s</td><td class=\"wide\"><div class=\"bar\" style=\"width:%.1f%%\"></div></td>"
                          "<td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>",
                          HtmlEscaped(NameOf(stage)), 100 * seconds.mean / longest, Milliseconds(seconds.mean),
                          Milliseconds(seconds.p50), Milliseconds(seconds.p95), Milliseconds(seconds.p99));
  }
  return html + "</table>";
}

std::string Chip(std::string_view what, const std::string& value) {
  return absl::StrCat("<span class=\"chip num\"><b>", HtmlEscaped(what), "</b>", value, "</span>");
}

// Lists the numbers of clouds that did not run, by reason, and of requests that ended with an error, by status code.
std::string Refusals(const ModelStatistics& statistics) {
  std::string html;
  if (!statistics.dropped.empty()) {
    absl::StrAppend(&html, "<h3>Did not run, by reason (in the last minute)</h3><div class=\"chips\">");
    for (const ModelStatistics::Dropped& dropped : statistics.dropped) {
      absl::StrAppend(&html, Chip(NameOf(dropped.reason),
                                  absl::StrCat(Count(dropped.total), " (", Count(dropped.last_minute), ")")));
    }
    absl::StrAppend(&html, "</div>");
  }
  if (!statistics.failures.empty()) {
    absl::StrAppend(&html, "<h3>Not answered, by code</h3><div class=\"chips\">");
    for (const auto& [code, count] : statistics.failures) absl::StrAppend(&html, Chip(code, Count(count)));
    absl::StrAppend(&html, "</div>");
  }
  return html;
}

std::string Plans(const std::vector<ModelStatistics::Plan>& plans) {
  if (plans.empty()) return "";
  std::string html = "<h3>Plans in use, by version and device</h3><div class=\"chips\">";
  for (const ModelStatistics::Plan& plan : plans) {
    absl::StrAppend(&html, Chip(plan.source, absl::StrCat("version ", plan.version, ", ", HtmlEscaped(plan.device))));
  }
  return html + "</div>";
}

std::string Classes(const std::vector<ClassInfo>& classes) {
  if (classes.empty()) return "";
  std::string html = "<h3>Classes</h3><div class=\"chips\">";
  for (const ClassInfo& one : classes) {
    absl::StrAppendFormat(&html, "<span class=\"chip\"><span class=\"dot\" style=\"background:#%06x\"></span>%s</span>",
                          one.color_rgb & 0xFFFFFF, HtmlEscaped(one.name));
  }
  return html + "</div>";
}

std::string Problems(const std::vector<std::string>& problems) {
  if (problems.empty()) return "";
  std::string html = "<ul class=\"bad\">";
  for (const std::string& problem : problems) absl::StrAppend(&html, "<li>", HtmlEscaped(problem), "</li>");
  return html + "</ul>";
}

// Names the model's outputs. Returns "" for a model that answers only labels.
std::string Outputs(const ModelVersionInfo& info) {
  std::string html;
  if (info.has_boxes) {
    absl::StrAppend(&html, " &middot; ", info.has_labels ? "labels and " : "", "boxes",
                    info.has_velocities ? " with velocities" : "");
  }
  if (!info.tensors.empty()) {
    const auto append = [](std::string* out, const TensorInfo& tensor) {
      absl::StrAppend(out, HtmlEscaped(tensor.name));
    };
    absl::StrAppend(&html, " &middot; tensors ", absl::StrJoin(info.tensors, ", ", append));
  }
  return html;
}

// Makes a tile for the queue, and tiles for batches, prediction errors, refusals, streams and frame ages if there are
// any.
std::string LoadTiles(const ModelStatistics& statistics) {
  std::string html = absl::StrCat(Tile(Count(statistics.queue_depth), "waiting"));
  if (statistics.batch_requests.count > 0) {
    const Distribution& requests = statistics.batch_requests;
    absl::StrAppend(&html, Tile(absl::StrFormat("%.1f", requests.mean), "requests a batch"),
                    Tile(absl::StrFormat("%.0f", std::ceil(requests.p95)), "p95 of them"),
                    Tile(Count(std::llround(statistics.batch_points.mean)), "points a batch"),
                    Tile(Count(std::llround(statistics.batch_voxels.mean)), "voxels a batch"));
  }
  if (statistics.prediction_error.count > 0) {
    absl::StrAppend(&html,
                    Tile(absl::StrFormat("%.0f%%", 100 * statistics.prediction_error.p50), "p50 prediction error"),
                    Tile(absl::StrFormat("%.0f%%", 100 * statistics.prediction_error.p95), "p95 prediction error"));
  }
  if (statistics.refusal_seconds.count > 0) {
    absl::StrAppend(&html, Tile(Milliseconds(statistics.refusal_seconds.p99), "p99 of refusals"));
  }
  if (statistics.streams > 0) absl::StrAppend(&html, Tile(Count(statistics.streams), "streams open"));
  if (statistics.frame_age_seconds.count > 0) {
    absl::StrAppend(&html, Tile(Milliseconds(statistics.frame_age_seconds.p50), "p50 frame age"),
                    Tile(Milliseconds(statistics.frame_age_seconds.p99), "p99 frame age"));
  }
  if (statistics.negative_ages > 0) {
    absl::StrAppend(&html, Tile(Count(statistics.negative_ages), "stamped in the future"));
  }
  return html;
}

std::string Traffic(const ModelStatistics& statistics) {
  constexpr int kRateSeconds = 10;
  const std::vector<int64_t>& history = statistics.frames_history;
  const auto recent = std::min<size_t>(history.size(), kRateSeconds);
  const int64_t frames =
      std::accumulate(history.end() - static_cast<std::ptrdiff_t>(recent), history.end(), int64_t{0});
  int64_t failures = 0;
  for (const auto& [code, count] : statistics.failures) failures += count;
  std::string html =
      absl::StrCat("<div class=\"tiles\">",
                   Tile(absl::StrFormat("%.1f", static_cast<double>(frames) / kRateSeconds), "frames a second"),
                   Tile(Milliseconds(statistics.latency_seconds.p50), "p50 latency"),
                   Tile(Milliseconds(statistics.latency_seconds.p95), "p95 latency"),
                   Tile(Milliseconds(statistics.latency_seconds.p99), "p99 latency"), LoadTiles(statistics),
                   Tile(Count(statistics.frames), "frames answered"),
                   statistics.boxes > 0 ? Tile(Count(statistics.boxes), "boxes found") : "",
                   Tile(Count(failures), "not answered"), "</div>");
  if (!history.empty()) absl::StrAppend(&html, Sparkline(history));
  return absl::StrCat(html, Stages(statistics.stage_seconds), Refusals(statistics), Plans(statistics.plans));
}

std::string DeviceCard(const DeviceStatistics& device, absl::Duration uptime) {
  const double busy = device.busy_seconds / std::max(absl::ToDoubleSeconds(uptime), 1e-3);
  std::string facts = absl::StrFormat("%.2f batches at once on average since the start", busy);
  for (const auto& [kind, bytes] : device.memory_bytes) {
    absl::StrAppend(&facts, " &middot; ", HtmlEscaped(kind), " ", Bytes(bytes));
  }
  return absl::StrCat("<section class=\"card\"><div class=\"top\" style=\"margin:0\"><h2>", HtmlEscaped(device.device),
                      "</h2><span class=\"dim small num\">", facts, "</span></div></section>");
}

std::string ModelCard(const ServerStatus::Model& model, bool is_first_version) {
  const ModelVersionInfo& info = model.info;
  std::string pill;
  switch (info.state) {
    case ModelState::kReady:
      pill = Pill("ok", "ready");
      break;
    case ModelState::kLoading:
      pill = Pill("wait", "loading");
      break;
    case ModelState::kFailed:
      pill = Pill("bad", "failed");
      break;
  }
  std::string facts = HtmlEscaped(info.device);
  if (info.num_parameters > 0) absl::StrAppend(&facts, " &middot; ", Count(info.num_parameters), " parameters");
  if (!info.voxel_size.empty()) {
    absl::StrAppend(&facts, " &middot; voxels of ");
    for (size_t i = 0; i < info.voxel_size.size(); ++i) {
      absl::StrAppendFormat(&facts, "%s%.3g", i == 0 ? "" : " &times; ", info.voxel_size[i]);
    }
    absl::StrAppend(&facts, " m");
  }
  if (info.max_points > 0) absl::StrAppend(&facts, " &middot; up to ", Count(info.max_points), " points");
  absl::StrAppend(&facts, Outputs(info));
  if (!info.plan_source.empty()) absl::StrAppend(&facts, " &middot; plan: ", HtmlEscaped(info.plan_source));
  return absl::StrCat("<section class=\"card\"><div class=\"top\"><h2>", HtmlEscaped(info.name),
                      " <span class=\"dim\">/ ", info.version, "</span></h2>", pill, "<span class=\"dim small\">",
                      facts, "</span></div><div class=\"dim\">", HtmlEscaped(info.description), "</div>",
                      Problems(info.problems), is_first_version ? Traffic(model.statistics) : "", Classes(info.classes),
                      "</section>");
}

}  // namespace

std::string HtmlEscaped(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string RenderHtml(const ServerStatus& status) {
  const std::string readiness =
      status.readiness.ok() ? Pill("ok", "ready") : Pill("wait", std::string(status.readiness.message()));
  std::string html = absl::StrCat(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>voxserve</title>"
      "<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript><style>",
      kStatusPageStyle,
      "</style></head><body><main><div id=\"gone\" class=\"pill bad\">The server does not answer.</div>",
      "<div id=\"live\"><header><h1>voxserve</h1>", readiness, "<span class=\"dim\">", HtmlEscaped(status.version),
      " &middot; ", HtmlEscaped(status.devices), " &middot; gRPC on ", HtmlEscaped(status.grpc_address),
      " &middot; up ", Uptime(status.uptime), "</span></header>");
  if (status.models.empty()) absl::StrAppend(&html, "<section class=\"card\">The model repository is empty.</section>");
  std::string previous;
  for (const ServerStatus::Model& model : status.models) {
    absl::StrAppend(&html, ModelCard(model, model.info.name != previous));
    previous = model.info.name;
  }
  for (const DeviceStatistics& device : status.device_statistics) {
    absl::StrAppend(&html, DeviceCard(device, status.uptime));
  }
  absl::StrAppend(
      &html,
      "<div class=\"dim small\"><a href=\"/metrics\">metrics</a> &middot; <a href=\"/healthz\">healthz</a> "
      "&middot; <a href=\"/readyz\">readyz</a> &middot; latencies, stages, batches and errors are those of the last "
      "minute, counts those since the start</div></div></main><script>",
      kStatusPageScript, "</script></body></html>\n");
  return html;
}

}  // namespace voxserve
