#include "client/cpp/api/answer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace voxserve::client {
namespace {

constexpr double kFewestPoints = 100;
constexpr double kShareOutside = 0.9;

}  // namespace

std::string RangeWarning(const Answer& answer) {
  const v1::PointCounts& counts = answer.counts;
  const uint64_t points = counts.used() + counts.out_of_range() + counts.dropped() + counts.unsampled();
  const double least = std::max(kFewestPoints, kShareOutside * static_cast<double>(points));
  if (static_cast<double>(counts.out_of_range()) < least) return "";
  return absl::StrCat(counts.out_of_range(), " of ", points, " points lie outside of the range that ", answer.model,
                      " accepts, and are left out; coordinates are metres from the sensor");
}

}  // namespace voxserve::client
