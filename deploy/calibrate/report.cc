#include "deploy/calibrate/report.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cpp/view/count_text.h"

namespace voxserve::calibrate {
namespace {

constexpr size_t kWidestName = 40;

std::string Counted(int64_t count, const char* one, const char* many) {
  return absl::StrCat(client::WithSeparators(static_cast<uint64_t>(count)), " ", count == 1 ? one : many);
}

std::string NumberOf(const std::map<std::string, float>& numbers, const std::string& name) {
  const auto found = numbers.find(name);
  return found == numbers.end() ? "-" : absl::StrFormat("%.4g", found->second);
}

}  // namespace

std::string FormatLayers(const std::vector<LayerChoice>& layers, const std::map<std::string, float>& ranges,
                         const std::map<std::string, float>& largest) {
  size_t width = 5;
  for (const LayerChoice& layer : layers) width = std::max(width, layer.node.size());
  const int name_width = static_cast<int>(std::min(width, kWidestName));
  std::string text = absl::StrFormat("  %-*s %9s %13s %11s %9s %9s  %s\n", name_width, "layer", "channels",
                                     "alone differs", "mean error", "range", "largest", "multiplies in");
  for (const LayerChoice& layer : layers) {
    absl::StrAppendFormat(&text, "  %-*s %9s %13s %11s %9s %9s  %s\n", name_width, layer.node,
                          absl::StrCat(layer.in_channels, ">", layer.out_channels),
                          layer.is_measured ? absl::StrFormat("%.3f%%", 100 * layer.disagreement) : "-",
                          layer.is_measured ? absl::StrFormat("%.5f", layer.error) : "-", NumberOf(ranges, layer.value),
                          NumberOf(largest, layer.value),
                          layer.why_float.empty() ? "8 bits" : absl::StrCat("float: ", layer.why_float));
  }
  return text;
}

std::string FormatAgreement(const Agreement& agreement, size_t num_scans) {
  std::vector<std::string> parts;
  const auto add = [&](const Agreement::Part& part, const char* one, const char* many) {
    if (part.total == 0) return;
    parts.push_back(absl::StrFormat("%.3f%% of %s", 100 * part.share(), Counted(part.total, one, many)));
  };
  add(agreement.labels(), "label", "labels");
  add(agreement.boxes(), "box", "boxes");
  add(agreement.rows(), "row", "rows");
  return absl::StrCat(absl::StrJoin(parts, " and "), " in ", Counted(static_cast<int64_t>(num_scans), "scan", "scans"));
}

}  // namespace voxserve::calibrate
