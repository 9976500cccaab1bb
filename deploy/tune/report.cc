#include "deploy/tune/report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/cli/report.h"
#include "client/cpp/view/count_text.h"
#include "engine/tuner/plan_candidates.h"

namespace voxserve::tune {
namespace {

constexpr size_t kMaxNotes = 20;

std::string Count(int64_t count) { return client::WithSeparators(static_cast<uint64_t>(count)); }

std::string VoxelsOf(const PlanTable::Bucket& bucket) {
  const bool has_end = bucket.max_voxels != PlanTable::kNoLimit;
  if (!has_end) return bucket.min_voxels == 0 ? "any" : absl::StrCat("from ", Count(bucket.min_voxels));
  if (bucket.min_voxels == 0) return absl::StrCat("below ", Count(bucket.max_voxels));
  return absl::StrCat(Count(bucket.min_voxels), " to ", Count(bucket.max_voxels));
}

std::string Ratio(absl::Duration before, absl::Duration after) {
  if (before <= absl::ZeroDuration() || after <= absl::ZeroDuration()) return "-";
  return absl::StrFormat("%.2fx", absl::FDivDuration(before, after));
}

std::string FormatConvs(const std::vector<ConvReport>& convs) {
  size_t width = 11;
  for (const ConvReport& conv : convs) width = std::max(width, conv.node.size());
  const int name_width = static_cast<int>(std::min<size_t>(width, 40));
  std::string text = absl::StrFormat("  %-*s %9s %10s %10s %7s  %s\n", name_width, "convolution", "channels",
                                     "default us", "tuned us", "gain", "plan");
  for (const ConvReport& conv : convs) {
    absl::StrAppendFormat(&text, "  %-*s %9s %10.1f %10.1f %7s  %s\n", name_width, conv.node,
                          absl::StrCat(conv.in_channels, ">", conv.out_channels),
                          absl::ToDoubleMicroseconds(conv.default_time), absl::ToDoubleMicroseconds(conv.tuned_time),
                          Ratio(conv.default_time, conv.tuned_time), Describe(conv.plan));
  }
  return text;
}

}  // namespace

std::string FormatResult(const SearchResult& result, const std::string& device) {
  std::string text;
  for (size_t i = 0; i < result.buckets.size(); ++i) {
    absl::StrAppend(&text, "Voxels: ", VoxelsOf(result.buckets[i].bucket), "\n", FormatConvs(result.convs[i]), "\n");
  }
  absl::StrAppendFormat(&text, "The whole network on %s, from points on the device to labels, medians:\n", device);
  absl::StrAppendFormat(&text, "  %-22s %5s %11s %11s %7s\n", "voxels", "scans", "default ms", "tuned ms", "gain");
  for (const TunedBucket& bucket : result.buckets) {
    absl::StrAppendFormat(&text, "  %-22s %5d %11.3f %11.3f %7s\n", VoxelsOf(bucket.bucket), bucket.num_scans,
                          absl::ToDoubleMilliseconds(bucket.default_time),
                          absl::ToDoubleMilliseconds(bucket.tuned_time), Ratio(bucket.default_time, bucket.tuned_time));
  }
  absl::StrAppend(&text, "\n", Count(result.num_runs), " runs in ", client::FormatTime(result.search_time), "\n");
  const size_t num_shown = std::min(result.notes.size(), kMaxNotes);
  for (size_t i = 0; i < num_shown; ++i) absl::StrAppend(&text, "note: ", result.notes[i], "\n");
  if (num_shown < result.notes.size()) {
    absl::StrAppend(&text, "and ", result.notes.size() - num_shown, " more notes\n");
  }
  return text;
}

}  // namespace voxserve::tune
