#include "client/cpp/cli/box_report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/cli/report.h"
#include "client/cpp/view/count_text.h"

namespace voxserve::client {
namespace {

constexpr size_t kMaxRows = 20;
constexpr double kDegrees = 180 / 3.14159265358979323846;

}  // namespace

std::string FormatBoxCounts(const std::vector<BoxCount>& counts, const Terminal& terminal) {
  if (counts.empty()) return "\n  no boxes\n";
  const absl::string_view indent = terminal.out_color ? "  " : "";  // as wide as a swatch of colour
  std::string text = absl::StrFormat("\n  %s%-16s %11s %7s\n", indent, "class", "boxes", "best");
  for (const BoxCount& count : counts) {
    const double share = static_cast<double>(count.num_boxes) / static_cast<double>(counts.front().num_boxes);
    absl::StrAppendFormat(&text, "  %s%-16s %11s %7.2f  %s\n", Swatch(count.color_rgb, terminal), count.name,
                          WithSeparators(count.num_boxes), count.best_score, Bar(share, terminal));
  }
  return text;
}

std::string FormatBoxes(const std::vector<Box>& boxes, const std::vector<v1::ClassInfo>& classes,
                        const Terminal& terminal) {
  if (boxes.empty()) return "";
  const absl::string_view indent = terminal.out_color ? "  " : "";
  const bool have_queries =
      std::any_of(boxes.begin(), boxes.end(), [](const Box& box) { return box.query.has_value(); });
  std::string text =
      absl::StrFormat("\n  %s%-16s %6s %8s %8s %8s %6s %6s %6s %6s %6s%s\n", indent, "box", "score", "x m", "y m",
                      "z m", "long", "wide", "high", "yaw", "m/s", have_queries ? "  query" : "");
  const std::vector<const Box*> sorted = SurestFirst(boxes);
  for (size_t i = 0; i < std::min(sorted.size(), kMaxRows); ++i) {
    const Box& box = *sorted[i];
    const std::string query = box.query ? absl::StrFormat(" %6d", *box.query) : "";
    absl::StrAppendFormat(&text, "  %s%-16s %6.2f %8.2f %8.2f %8.2f %6.2f %6.2f %6.2f %6.0f %6.1f%s\n",
                          Swatch(RgbOf(box, classes), terminal), NameOf(box, classes), box.score, box.x, box.y, box.z,
                          box.length, box.width, box.height, box.yaw * kDegrees,
                          std::hypot(box.velocity_x, box.velocity_y), query);
  }
  if (boxes.size() > kMaxRows) {
    absl::StrAppend(&text, "  ", boxes.size() - kMaxRows, " more; use --json or --save for all\n");
  }
  return text;
}

}  // namespace voxserve::client
