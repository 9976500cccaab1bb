#include "engine/tuner/result_guard.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace voxserve {
namespace {

constexpr double kMaxScoreError = 0.02;      // as a share of the largest score
constexpr double kMaxChangedLabels = 0.005;  // as a share of the points
constexpr float kMaxBoxScoreError = 0.05f;
constexpr float kMaxBoxDistance = 0.2f;   // in m
constexpr double kMaxChangedBoxes = 0.1;  // as a share of the boxes

// Returns why the values deviate; "" if they do not. what: their name in the message, such as "a score".
std::string WhyValuesDeviate(const std::string& what, absl::Span<const float> expected,
                             absl::Span<const float> result) {
  double largest = 0, largest_error = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(expected[i])) continue;
    if (!std::isfinite(result[i])) return absl::StrCat(what, " is not finite");
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    largest_error = std::max(largest_error, std::abs(static_cast<double>(result[i]) - expected[i]));
  }
  if (largest_error <= kMaxScoreError * largest) return "";
  return absl::StrFormat("%s is off by %.3g, where the largest is %.3g", what, largest_error, largest);
}

std::string WhyLabelsDeviate(absl::Span<const uint8_t> expected, absl::Span<const uint8_t> result,
                             size_t bytes_per_label) {
  const size_t num_points = expected.size() / bytes_per_label;
  size_t num_changed = 0;
  for (size_t i = 0; i < num_points; ++i) {
    const size_t at = i * bytes_per_label;
    num_changed += std::memcmp(expected.data() + at, result.data() + at, bytes_per_label) != 0 ? 1 : 0;
  }
  if (static_cast<double>(num_changed) <= kMaxChangedLabels * static_cast<double>(num_points)) return "";
  return absl::StrFormat("%d of %d labels differ", num_changed, num_points);
}

// Allows for rounding, which moves a box a little and may move one across the score threshold.
std::string WhyBoxesDeviate(const std::vector<Box>& expected, const std::vector<Box>& result) {
  const auto is_like = [](const Box& a, const Box& b) {
    return a.class_id == b.class_id && std::abs(a.score - b.score) <= kMaxBoxScoreError &&
           std::hypot(a.x - b.x, a.y - b.y, a.z - b.z) <= kMaxBoxDistance;
  };
  const auto count_lost = [&](const std::vector<Box>& from, const std::vector<Box>& to) {
    return std::count_if(from.begin(), from.end(), [&](const Box& box) {
      return std::none_of(to.begin(), to.end(), [&](const Box& other) { return is_like(box, other); });
    });
  };
  const int64_t num_changed = count_lost(expected, result) + count_lost(result, expected);
  const size_t num_boxes = expected.size() + result.size();
  if (static_cast<double>(num_changed) <= std::max(kMaxChangedBoxes * static_cast<double>(num_boxes), 2.0)) return "";
  return absl::StrFormat("%d of %d boxes have no matching box", num_changed, num_boxes);
}

absl::Span<const float> ValuesOf(const OutputTensor& tensor) {
  return {reinterpret_cast<const float*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(float)};
}

// Compares rows in order: a site has the same row under every plan.
std::string WhyTensorsDeviate(const std::vector<OutputTensor>& expected, const std::vector<OutputTensor>& result) {
  if (expected.size() != result.size()) return "it has another number of tensors";
  for (size_t i = 0; i < expected.size(); ++i) {
    const std::string what = absl::StrCat("a value of tensor ", expected[i].info.name);
    if (expected[i].coordinates != result[i].coordinates || expected[i].bytes.size() != result[i].bytes.size()) {
      return absl::StrCat("tensor ", expected[i].info.name, " has other rows");
    }
    std::string why = WhyValuesDeviate(what, ValuesOf(expected[i]), ValuesOf(result[i]));
    if (!why.empty()) return why;
  }
  return "";
}

}  // namespace

std::string WhyDeviates(const Program& program, const InferResult& expected, const InferResult& result) {
  if (expected.scores().size() != result.scores().size() || expected.labels().size() != result.labels().size()) {
    return "its result has a different size";
  }
  if (std::string why = WhyTensorsDeviate(expected.tensors, result.tensors); !why.empty()) return why;
  if (program.has_boxes) {
    std::string why = WhyBoxesDeviate(expected.boxes(), result.boxes());
    if (!why.empty() || !program.has_labels) return why;
  }
  if (!expected.scores().empty()) return WhyValuesDeviate("a score", expected.scores(), result.scores());
  return WhyLabelsDeviate(expected.labels(), result.labels(), static_cast<size_t>(SizeOf(program.label_dtype)));
}

bool HaveSameBytes(const InferResult& a, const InferResult& b) {
  const auto are_same = [](const OutputTensor& x, const OutputTensor& y) {
    return x.bytes == y.bytes && x.coordinates == y.coordinates;
  };
  if (!std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(), are_same)) return false;
  return std::equal(a.outputs.begin(), a.outputs.end(), b.outputs.begin(), b.outputs.end(),
                    [](const NamedOutput& x, const NamedOutput& y) { return x.name == y.name && x.bytes == y.bytes; });
}

}  // namespace voxserve
