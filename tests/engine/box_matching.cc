#include "tests/engine/box_matching.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace voxserve {
namespace {

constexpr size_t kYaw = 6, kScore = 9, kClass = 10;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns the largest difference between two numbers of the boxes, as a fraction of the tolerance for that number.
// Returns infinity if the classes differ.
float Difference(const BoxRow& a, const BoxRow& b, const BoxTolerance& tolerance) {
  if (a[kClass] != b[kClass]) return kInfinity;
  float largest = 0;
  for (size_t i = 0; i < kClass; ++i) {
    float difference = a[i] - b[i];
    if (i == kYaw) difference = std::remainder(difference, 2 * static_cast<float>(M_PI));
    difference = std::abs(difference) / (i == kScore ? tolerance.score : tolerance.number);
    largest = std::isnan(difference) ? kInfinity : std::max(largest, difference);
  }
  return largest;
}

void AppendRows(const std::string& title, const std::vector<BoxRow>& rows, std::string* text) {
  for (const BoxRow& row : rows) {
    absl::StrAppend(text, title, " class ", row[kClass], " at ", row[0], ", ", row[1], " with score ", row[kScore],
                    "\n");
  }
}

}  // namespace

std::vector<BoxRow> RowsOf(const support::NpyArray& boxes) {
  const std::vector<float> values = boxes.values<float>();
  std::vector<BoxRow> rows(values.size() / BoxRow().size());
  for (size_t i = 0; i < rows.size(); ++i) std::copy_n(&values[i * rows[i].size()], rows[i].size(), rows[i].begin());
  return rows;
}

std::string BoxMatches::ToString() const {
  std::string text = absl::StrCat(num_matched, " boxes match\n");
  AppendRows("missing:", missing, &text);
  AppendRows("not expected:", others, &text);
  return text;
}

BoxMatches MatchBoxes(const std::vector<BoxRow>& boxes, const std::vector<BoxRow>& expected,
                      const BoxTolerance& tolerance) {
  BoxMatches matches{.others = boxes};
  for (const BoxRow& row : expected) {
    const auto closest =
        std::min_element(matches.others.begin(), matches.others.end(), [&](const BoxRow& a, const BoxRow& b) {
          return Difference(a, row, tolerance) < Difference(b, row, tolerance);
        });
    if (closest != matches.others.end() && Difference(*closest, row, tolerance) <= 1) {
      matches.others.erase(closest);
      ++matches.num_matched;
    } else {
      matches.missing.push_back(row);
    }
  }
  return matches;
}

}  // namespace voxserve
