#include "client/cpp/cli/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cpp/cli/box_report.h"
#include "client/cpp/io/box_file.h"
#include "client/cpp/view/count_text.h"

namespace voxserve::client {
namespace {

constexpr uint16_t kNoTruth = 255;
constexpr int kBarWidth = 24;

using Json = nlohmann::ordered_json;

std::string Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? "-" : absl::StrFormat("%.1f%%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

// Returns the predicted classes, followed by the classes that only the truth has.
std::vector<ClassCount> RowsOf(std::vector<ClassCount> counts, const std::optional<Agreement>& agreement,
                               const std::vector<v1::ClassInfo>& classes) {
  if (!agreement) return counts;
  for (const v1::ClassInfo& info : classes) {
    const int id = static_cast<int>(info.id());
    const bool is_there =
        std::any_of(counts.begin(), counts.end(), [&](const ClassCount& count) { return count.id == id; });
    if (!is_there && agreement->by_class.count(id) > 0) counts.push_back({id, info.name(), info.color_rgb(), 0, 0});
  }
  return counts;
}

std::string FormatStages(const Answer& result, const Terminal& terminal) {
  absl::Duration total;
  for (const Stage& stage : result.stages) total += stage.duration;
  std::string text = absl::StrFormat("\n  %-14s %9s\n", "stage", "ms");
  const auto row = [&](absl::string_view name, absl::Duration duration, const std::string& note) {
    absl::StrAppendFormat(&text, "  %-14s %9.2f  %s\n", name, absl::ToDoubleMilliseconds(duration), note);
  };
  for (const Stage& stage : result.stages) {
    const double share = total > absl::ZeroDuration() ? absl::FDivDuration(stage.duration, total) : 0;
    row(stage.name, stage.duration, Bar(share, terminal));
  }
  row("server", total, "");
  row("round trip", result.round_trip,
      absl::StrCat("network and gRPC ", FormatTime(std::max(result.round_trip - total, absl::ZeroDuration()))));
  return text;
}

Json JsonOf(const std::vector<ClassCount>& counts) {
  Json classes = Json::array();
  for (const ClassCount& count : counts) {
    classes.push_back({{"id", count.id}, {"name", count.name}, {"points", count.num_points}, {"share", count.share}});
  }
  return classes;
}

Json JsonOf(const Agreement& agreement) {
  Json json = {{"file", agreement.file},
               {"points", agreement.total.num_points},
               {"agreeing", agreement.total.num_agreeing},
               {"without", agreement.num_without}};
  Json by_class = Json::object();
  for (const auto& [id, of_class] : agreement.by_class) {
    by_class[of_class.name] = {{"points", of_class.num_points}, {"agreeing", of_class.num_agreeing}};
  }
  json["classes"] = std::move(by_class);
  return json;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";  // file names need not be UTF-8
}

std::string FormatTensors(const std::vector<Tensor>& tensors) {
  std::string text;
  for (const Tensor& tensor : tensors) {
    absl::StrAppendFormat(&text, "  %-20s %16s  %s", tensor.name, absl::StrJoin(tensor.shape, " x "),
                          tensor.type == v1::ELEMENT_TYPE_FLOAT16 ? "float16" : "float32");
    if (!tensor.unit.empty()) absl::StrAppend(&text, " of sites, unit ", absl::StrJoin(tensor.unit, " x "));
    text += "\n";
  }
  return text;
}

}  // namespace

void Agreement::Add(const Agreement& other) {
  total.num_points += other.total.num_points;
  total.num_agreeing += other.total.num_agreeing;
  num_without += other.num_without;
  for (const auto& [id, of_class] : other.by_class) {
    by_class[id].name = of_class.name;
    by_class[id].num_points += of_class.num_points;
    by_class[id].num_agreeing += of_class.num_agreeing;
  }
}

Agreement Compare(const std::vector<uint16_t>& labels, const std::vector<uint16_t>& truth, uint16_t ignore_label,
                  const std::vector<v1::ClassInfo>& classes) {
  std::map<int, std::string> names;
  for (const v1::ClassInfo& info : classes) names[static_cast<int>(info.id())] = info.name();
  Agreement agreement;
  for (size_t i = 0; i < labels.size() && i < truth.size(); ++i) {
    const auto name = names.find(truth[i]);
    if (truth[i] == kNoTruth || truth[i] == ignore_label || name == names.end()) {
      ++agreement.num_without;
      continue;
    }
    Agreement::OfClass& of_class = agreement.by_class[truth[i]];
    if (of_class.num_points++ == 0) of_class.name = name->second;
    ++agreement.total.num_points;
    if (labels[i] != truth[i]) continue;
    ++of_class.num_agreeing;
    ++agreement.total.num_agreeing;
  }
  return agreement;
}

std::string FormatTime(absl::Duration duration) {
  if (duration >= absl::Seconds(1)) return absl::StrFormat("%.2f s", absl::ToDoubleSeconds(duration));
  return absl::StrFormat("%.1f ms", absl::ToDoubleMilliseconds(duration));
}

std::string Bar(double share, const Terminal& terminal) {
  const int eighths = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * kBarWidth * 8));
  if (!terminal.out_unicode) return std::string(static_cast<size_t>((eighths + 4) / 8), '#');
  static constexpr const char* kParts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  return bar + kParts[eighths % 8];
}

std::string Swatch(uint32_t color_rgb, const Terminal& terminal) {
  if (!terminal.out_color) return "";
  return absl::StrFormat("\x1b[38;2;%d;%d;%dm■\x1b[0m ", color_rgb >> 16 & 0xff, color_rgb >> 8 & 0xff,
                         color_rgb & 0xff);
}

std::string FormatClasses(const std::vector<ClassCount>& counts, const std::optional<Agreement>& agreement,
                          uint64_t num_points, const std::vector<v1::ClassInfo>& classes, const Terminal& terminal) {
  const std::vector<ClassCount> rows = RowsOf(counts, agreement, classes);
  const double largest = counts.empty() ? 1 : counts.front().share;
  const absl::string_view indent = terminal.out_color ? "  " : "";  // as wide as a swatch of colour
  std::string text = absl::StrFormat("\n  %s%-16s %11s %7s", indent, "class", "points", "share");
  if (agreement) absl::StrAppendFormat(&text, " %11s %8s", "by people", "agree");
  absl::StrAppend(&text, "\n");
  uint64_t labelled = 0;
  for (const ClassCount& row : rows) {
    labelled += row.num_points;
    absl::StrAppendFormat(&text, "  %s%-16s %11s %7s", Swatch(row.color_rgb, terminal), row.name,
                          WithSeparators(row.num_points), Percent(row.num_points, num_points));
    if (agreement) {
      const auto found = agreement->by_class.find(row.id);
      const Agreement::OfClass of_class = found == agreement->by_class.end() ? Agreement::OfClass() : found->second;
      absl::StrAppendFormat(&text, " %11s %8s", WithSeparators(of_class.num_points),
                            Percent(of_class.num_agreeing, of_class.num_points));
    }
    absl::StrAppend(&text, "  ", Bar(row.share / largest, terminal), "\n");
  }
  if (labelled < num_points) {
    absl::StrAppendFormat(&text, "  %s%-16s %11s %7s\n", indent, "not labelled", WithSeparators(num_points - labelled),
                          Percent(num_points - labelled, num_points));
  }
  if (agreement) {
    absl::StrAppend(&text, "\n", Percent(agreement->total.num_agreeing, agreement->total.num_points),
                    " agree with the labels of people: ", WithSeparators(agreement->total.num_agreeing), " of ",
                    WithSeparators(agreement->total.num_points), " points");
    if (agreement->num_without > 0) absl::StrAppend(&text, " (", WithSeparators(agreement->num_without), " have none)");
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::string FormatReport(const ScanReport& report, const std::vector<v1::ClassInfo>& classes,
                         const Terminal& terminal) {
  const Answer& result = report.result;
  std::vector<std::string> done;
  if (report.has_labels) done.push_back("labelled");
  if (report.boxes) done.push_back(absl::StrCat(WithSeparators(report.boxes->size()), " boxes found"));
  const std::string what = done.empty() ? "run" : absl::StrJoin(done, " and ");
  std::string text = absl::StrCat(report.file, ": ", WithSeparators(report.num_points), " points in ",
                                  WithSeparators(result.counts.voxels()), " voxels, ", what, " by ", result.model,
                                  " version ", result.version, " on ", result.device, "\n");
  if (report.has_labels) {
    absl::StrAppend(&text, FormatClasses(report.classes, report.agreement, report.num_points, classes, terminal));
  }
  if (report.boxes) {
    absl::StrAppend(&text, FormatBoxCounts(CountBoxes(*report.boxes, classes), terminal),
                    FormatBoxes(*report.boxes, classes, terminal));
  }
  if (done.empty()) absl::StrAppend(&text, FormatTensors(result.tensors));
  const v1::PointCounts& counts = result.counts;
  std::vector<std::string> lost;
  if (counts.invalid() > 0) lost.push_back(absl::StrCat(WithSeparators(counts.invalid()), " NaN or infinite"));
  if (counts.out_of_range() > 0) lost.push_back(absl::StrCat(WithSeparators(counts.out_of_range()), " out of range"));
  if (counts.dropped() > 0) lost.push_back(absl::StrCat(WithSeparators(counts.dropped()), " beyond the voxel limit"));
  if (counts.unsampled() > 0) lost.push_back(absl::StrCat(WithSeparators(counts.unsampled()), " not in the sample"));
  if (counts.not_finite() > 0)
    lost.push_back(absl::StrCat(WithSeparators(counts.not_finite()), " without finite logits"));
  if (!lost.empty())
    absl::StrAppend(&text, report.has_labels ? "\nnot labelled: " : "\nnot used: ", absl::StrJoin(lost, ", "), "\n");
  if (counts.boxes_not_finite() > 0) {
    absl::StrAppend(&text, "\nboxes left out: ", WithSeparators(counts.boxes_not_finite()),
                    " candidates with NaN or infinite numbers\n");
  }
  if (!result.sampled_points.empty()) {
    absl::StrAppend(&text, "\nsampled: ", WithSeparators(result.sampled_points.size()), " farthest points\n");
  }
  absl::StrAppend(&text, FormatStages(result, terminal));
  if (report.over) {
    const Answer& over = report.over->result;
    absl::StrAppend(&text, "\n", WithSeparators(report.over->boxes.size()), " boxes found by ", over.model, " version ",
                    over.version, " on ", over.device, "\n",
                    FormatBoxCounts(CountBoxes(report.over->boxes, report.over->classes), terminal),
                    FormatBoxes(report.over->boxes, report.over->classes, terminal), FormatStages(over, terminal));
  }
  if (!report.written.empty()) absl::StrAppend(&text, "\nwrote ", absl::StrJoin(report.written, ", "), "\n");
  return text;
}

std::string FormatJson(const ScanReport& report) {
  const Answer& result = report.result;
  const v1::PointCounts& counts = result.counts;
  Json json = {{"file", report.file},
               {"model", result.model},
               {"version", result.version},
               {"device", result.device},
               {"points", report.num_points},
               {"used", counts.used()},
               {"invalid", counts.invalid()},
               {"out_of_range", counts.out_of_range()},
               {"dropped", counts.dropped()},
               {"not_finite", counts.not_finite()},
               {"boxes_not_finite", counts.boxes_not_finite()},
               {"voxels", counts.voxels()}};
  if (!result.sampled_points.empty()) {
    json["unsampled"] = counts.unsampled();
    json["sampled_points"] = result.sampled_points;
  }
  if (report.has_labels) json["classes"] = JsonOf(report.classes);
  if (report.boxes) json["boxes"] = JsonOf(*report.boxes);
  if (!report.has_labels && !report.boxes) {
    for (const Tensor& tensor : result.tensors) json["tensors"][tensor.name] = tensor.shape;
  }
  if (report.over) {
    json["boxes_model"] = report.over->result.model;
    json["boxes"] = JsonOf(report.over->boxes);
  }
  if (report.agreement) json["truth"] = JsonOf(*report.agreement);
  Json stages = Json::object();
  for (const Stage& stage : result.stages) stages[stage.name] = absl::ToDoubleMilliseconds(stage.duration);
  json["stages_ms"] = std::move(stages);
  json["round_trip_ms"] = absl::ToDoubleMilliseconds(result.round_trip);
  json["written"] = report.written;
  return Dump(json);
}

std::string FormatJsonError(const std::string& file, const absl::Status& status) {
  return Dump({{"file", file},
               {"error",
                {{"code", absl::StatusCodeToString(status.code())},
                 {"reason", ErrorReason(status)},
                 {"message", std::string(status.message())}}}});
}

}  // namespace voxserve::client
