#include "deploy/calibrate/agreement.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <variant>
#include <vector>

#include "engine/tensor/box.h"

namespace voxserve::calibrate {
namespace {

double DistanceOf(const Box& a, const Box& b) { return std::hypot(a.x - b.x, a.y - b.y, a.z - b.z); }

// Returns the cosine between two rows; 1 for two rows of zeros. If it is not finite, since a number of the rows is not,
// returns 1 if they have the same bytes, else 0.
double Cosine(const float* a, const float* b, int64_t count) {
  double product = 0, a_square = 0, b_square = 0;
  for (int64_t i = 0; i < count; ++i) {
    product += double{a[i]} * b[i];
    a_square += double{a[i]} * a[i];
    b_square += double{b[i]} * b[i];
  }
  if (a_square == 0 && b_square == 0) return 1;
  if (a_square == 0 || b_square == 0) return 0;
  const double cosine = product / std::sqrt(a_square * b_square);
  if (std::isfinite(cosine)) return cosine;
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0 ? 1 : 0;
}

// Returns the absolute difference; for numbers whose difference is NaN, 0 if they have the same bytes, else infinity.
double Difference(float a, float b) {
  const double difference = std::abs(double{a} - b);
  if (!std::isnan(difference)) return difference;
  return std::memcmp(&a, &b, sizeof(a)) == 0 ? 0 : std::numeric_limits<double>::infinity();
}

}  // namespace

void Agreement::Add(const InferResult& expected, const InferResult& found) {
  AddLabels(expected, found);
  AddBoxes(expected, found);
  const bool has_others =
      expected.Find(NamedOutput::kLabels) != nullptr || expected.Find(NamedOutput::kBoxes) != nullptr;
  if (!has_others) AddTensors(expected, found);
}

void Agreement::AddLabels(const InferResult& expected, const InferResult& found) {
  const NamedOutput* const a = expected.Find(NamedOutput::kLabels);
  const NamedOutput* const b = found.Find(NamedOutput::kLabels);
  if (a == nullptr || b == nullptr) return;
  const auto label_bytes = static_cast<size_t>(a->row_bytes());
  for (size_t at = 0; at < a->bytes.size(); at += label_bytes) {
    int label = 0;  // little endian
    std::memcpy(&label, a->bytes.data() + at, label_bytes);
    if (label == expected.ignore_label) continue;
    ++labels_.total;
    if (a->bytes.compare(at, label_bytes, b->bytes, at, label_bytes) == 0) ++labels_.agreeing;
  }
  const absl::Span<const float> a_scores = expected.scores(), b_scores = found.scores();
  if (a_scores.size() != b_scores.size()) return;
  for (size_t i = 0; i < a_scores.size(); ++i) logit_error_.sum += Difference(a_scores[i], b_scores[i]);
  logit_error_.count += static_cast<int64_t>(a_scores.size());
}

void Agreement::AddBoxes(const InferResult& expected, const InferResult& found) {
  const std::vector<Box> boxes = expected.boxes(), others = found.boxes();
  std::vector<bool> is_taken(others.size());
  const auto count_alone = [&](const Box& box) { boxes_.total += box.score > least_score_ + kMatchScore ? 1 : 0; };
  for (const Box& box : boxes) {  // the best first
    size_t best = others.size();
    double best_distance = kMatchDistance;
    for (size_t i = 0; i < others.size(); ++i) {
      const bool may_match = !is_taken[i] && others[i].class_id == box.class_id &&
                             std::abs(double{others[i].score} - box.score) <= kMatchScore;
      const double distance = DistanceOf(box, others[i]);
      if (!may_match || distance > best_distance) continue;
      best = i;
      best_distance = distance;
    }
    if (best == others.size()) {
      count_alone(box);
      continue;
    }
    is_taken[best] = true;
    boxes_.total += 2;
    boxes_.agreeing += 2;
    box_error_.sum += std::abs(double{others[best].score} - box.score);
    ++box_error_.count;
  }
  for (size_t i = 0; i < others.size(); ++i) {
    if (!is_taken[i]) count_alone(others[i]);
  }
}

void Agreement::AddTensors(const InferResult& expected, const InferResult& found) {
  for (size_t t = 0; t < expected.tensors.size(); ++t) {
    const OutputTensor& a = expected.tensors[t];
    const OutputTensor& b = found.tensors[t];
    const int64_t num_common = a.coordinates == b.coordinates ? std::min(a.num_rows(), b.num_rows()) : 0;
    const auto* const a_rows = reinterpret_cast<const float*>(a.bytes.data());
    const auto* const b_rows = reinterpret_cast<const float*>(b.bytes.data());
    for (int64_t row = 0; row < num_common; ++row) {
      const int64_t begin = row * a.info.channels;
      rows_.agreeing += Cosine(a_rows + begin, b_rows + begin, a.info.channels);
    }
    rows_.total += std::max(a.num_rows(), b.num_rows());
  }
}

double Agreement::share() const { return std::min({labels_.share(), boxes_.share(), rows_.share()}); }

double Agreement::error() const {
  for (const Mean& mean : {logit_error_, box_error_}) {
    if (mean.count > 0) return mean.sum / static_cast<double>(mean.count);
  }
  return 1 - share();
}

double LeastBoxScore(const Graph& graph) {
  double least = std::numeric_limits<double>::infinity();
  for (const GraphNode& node : graph.nodes) {
    if (const auto* const center = std::get_if<CenterHeadDecodeOp>(&node.op)) {
      least = std::min(least, double{center->head.score_threshold});
    } else if (const auto* const anchor = std::get_if<AnchorHeadDecodeOp>(&node.op)) {
      least = std::min(least, double{anchor->head.score_threshold});
    } else if (const auto* const query = std::get_if<QueryDecodeOp>(&node.op)) {
      const auto& thresholds = query->head.score_thresholds;
      least =
          std::min(least, double{*std::min_element(thresholds.begin(), thresholds.begin() + query->head.num_classes)});
    }
  }
  return std::isinf(least) ? 0 : least;
}

}  // namespace voxserve::calibrate
