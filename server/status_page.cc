#include "server/status_page.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace voxserve {
namespace {

constexpr char kStyle[] = R"css(
:root{--bg:#f5f6f8;--card:#fff;--ink:#16202c;--dim:#66717f;--line:#e3e7ec;--accent:#0a7d8c;--ok:#12805c;--bad:#c0392b;
--wait:#a86a00}
@media(prefers-color-scheme:dark){:root{--bg:#0e1319;--card:#161d26;--ink:#e8edf3;--dim:#8b98a7;--line:#26303c;
--accent:#3cc8d8;--ok:#3ecf95;--bad:#ff7a6b;--wait:#f0b34a}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1060px;margin:0 auto;padding:28px 20px 60px}
header{display:flex;align-items:center;gap:14px;flex-wrap:wrap;margin-bottom:22px}
h1{font-size:24px;margin:0;letter-spacing:-.01em}h2{font-size:18px;margin:0}
.dim{color:var(--dim)}.small{font-size:13px}.num{font-variant-numeric:tabular-nums}
.pill{padding:2px 11px;border-radius:99px;font-size:13px;font-weight:600;border:1px solid currentColor}
.ok{color:var(--ok)}.bad{color:var(--bad)}.wait{color:var(--wait)}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:18px 20px;margin-bottom:16px}
.top{display:flex;align-items:center;gap:12px;flex-wrap:wrap;margin-bottom:6px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(120px,1fr));gap:12px;margin:14px 0}
.tile b{display:block;font-size:22px;font-weight:650;line-height:1.25}.tile span{color:var(--dim);font-size:12.5px}
svg{display:block;width:100%;height:56px}.stages{display:grid;grid-template-columns:auto 1fr auto;gap:3px 12px;
align-items:center;font-size:13px}.bar{height:8px;border-radius:4px;background:var(--accent);min-width:2px}
.chips{display:flex;flex-wrap:wrap;gap:6px;margin-top:12px}.chip{display:flex;align-items:center;gap:6px;font-size:12.5px;
border:1px solid var(--line);border-radius:99px;padding:1px 9px}.dot{width:9px;height:9px;border-radius:50%}
.right{text-align:right}
ul{margin:8px 0 0;padding-left:20px}a{color:var(--accent)}#gone{display:none;margin-bottom:16px}
)css";

constexpr char kScript[] = R"js(
setInterval(async()=>{const gone=document.getElementById('gone');try{
const page=new DOMParser().parseFromString(await(await fetch('/')).text(),'text/html');
document.getElementById('live').replaceWith(page.getElementById('live'));gone.style.display='none';
}catch(e){gone.style.display='block'}},2000);
)js";

// 3 significant digits and a unit that keeps them readable.
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

// Frames a second of the last minute, newest at the right.
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

std::string Stages(const std::vector<std::pair<std::string, double>>& stages) {
  double longest = 0;
  for (const auto& [name, seconds] : stages) longest = std::max(longest, seconds);
  if (longest == 0) return "";
  std::string html =
      "<div class=\"dim small\" style=\"margin:14px 0 4px\">Mean time of each stage</div>"
      "<div class=\"stages num\">";
  for (const auto& [name, seconds] : stages) {
    absl::StrAppendFormat(
        &html, "<span>%s</span><div class=\"bar\" style=\"width:%.1f%%\"></div><span class=\"right\">%s</span>",
        HtmlEscaped(name), 100 * seconds / longest, Milliseconds(seconds));
  }
  return html + "</div>";
}

std::string Classes(const std::vector<ClassInfo>& classes) {
  if (classes.empty()) return "";
  std::string html = "<div class=\"chips\">";
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

std::string Traffic(const ModelStatistics& statistics) {
  constexpr int kRateSeconds = 10;
  const std::vector<int64_t>& history = statistics.frames_history;
  std::string html = "<div class=\"tiles\">";
  const auto recent = std::min<size_t>(history.size(), kRateSeconds);
  const int64_t frames =
      std::accumulate(history.end() - static_cast<std::ptrdiff_t>(recent), history.end(), int64_t{0});
  absl::StrAppend(&html, Tile(absl::StrFormat("%.1f", static_cast<double>(frames) / kRateSeconds), "frames a second"),
                  Tile(Milliseconds(statistics.p50_seconds), "p50 latency"),
                  Tile(Milliseconds(statistics.p95_seconds), "p95 latency"),
                  Tile(Milliseconds(statistics.p99_seconds), "p99 latency"),
                  Tile(Count(statistics.queue_depth), "waiting"), Tile(Count(statistics.frames), "frames answered"),
                  Tile(Count(statistics.failures), "not answered"), "</div>");
  if (!history.empty()) absl::StrAppend(&html, Sparkline(history));
  return absl::StrCat(html, Stages(statistics.stage_mean_seconds));
}

std::string DeviceCard(const DeviceStatistics& device, absl::Duration uptime) {
  const double busy = 100 * device.busy_seconds / std::max(absl::ToDoubleSeconds(uptime), 1e-3);
  std::string facts = absl::StrFormat("computing %.1f%% of the time since the start", std::min(busy, 100.0));
  for (const auto& [kind, bytes] : device.memory_bytes) {
    absl::StrAppend(&facts, " &middot; ", HtmlEscaped(kind), " ",
                    absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6));
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
      kStyle, "</style></head><body><main><div id=\"gone\" class=\"pill bad\">The server does not answer.</div>",
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
  absl::StrAppend(&html,
                  "<div class=\"dim small\"><a href=\"/metrics\">metrics</a> &middot; <a href=\"/healthz\">healthz</a> "
                  "&middot; <a href=\"/readyz\">readyz</a></div></div></main><script>",
                  kScript, "</script></body></html>\n");
  return html;
}

}  // namespace voxserve
