#include "client/cpp/response.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/error.h"

namespace voxserve::client {

absl::Status Malformed(absl::string_view what) {
  return WithReason(absl::InternalError(absl::StrCat("the server's answer is malformed: ", what)), kMalformedResponse);
}

absl::Status CheckResponse(const v1::InferResponse& response, const Asked& asked) {
  const uint64_t num_points = asked.num_points;
  const v1::Segmentation& answer = response.segmentation();
  const uint64_t width = answer.bytes_per_label();
  if (width != 1 && width != 2) return Malformed(absl::StrCat("labels of ", width, " bytes"));
  if (answer.labels().size() != num_points * width) {
    return Malformed(absl::StrCat(answer.labels().size(), " bytes of labels for ", num_points, " points"));
  }
  const uint64_t num_scores = asked.wants_scores ? num_points * answer.num_classes() : 0;
  if (answer.scores().size() != num_scores * sizeof(float)) {
    return Malformed(absl::StrCat(answer.scores().size(), " bytes of scores for ", num_scores, " values"));
  }
  const auto& sampled = response.sampled_points();
  if (static_cast<uint64_t>(sampled.size()) != asked.num_sampled) {
    return Malformed(absl::StrCat(sampled.size(), " sampled points in place of ", asked.num_sampled));
  }
  const auto beyond = std::find_if(sampled.begin(), sampled.end(), [&](uint32_t index) { return index >= num_points; });
  if (beyond != sampled.end()) return Malformed(absl::StrCat("point ", *beyond, " sampled of ", num_points));
  return absl::OkStatus();
}

std::vector<Stage> StagesOf(const v1::InferResponse& response) {
  std::vector<Stage> stages;
  for (const v1::StageDuration& stage : response.stages()) {
    stages.push_back({stage.name(), absl::Microseconds(stage.microseconds())});
  }
  return stages;
}

absl::StatusOr<Segmentation> FromResponse(v1::InferResponse response, const Asked& asked, absl::Time start) {
  if (absl::Status status = CheckResponse(response, asked); !status.ok()) return status;
  const uint64_t num_points = asked.num_points;
  const v1::Segmentation& answer = response.segmentation();
  Segmentation result;
  result.model = std::move(*response.mutable_model());
  result.version = response.version();
  result.device = std::move(*response.mutable_device());
  result.request_id = std::move(*response.mutable_request_id());
  result.bytes_per_label = static_cast<int>(answer.bytes_per_label());
  result.ignore_label = static_cast<uint16_t>(answer.ignore_label());
  result.num_classes = static_cast<int>(answer.num_classes());
  result.counts = response.counts();
  result.stages = StagesOf(response);
  result.labels.resize(num_points);
  if (answer.bytes_per_label() == 2) {
    if (num_points > 0) std::memcpy(result.labels.data(), answer.labels().data(), answer.labels().size());
  } else {
    for (uint64_t i = 0; i < num_points; ++i) result.labels[i] = static_cast<uint8_t>(answer.labels()[i]);
  }
  result.scores.resize(answer.scores().size() / sizeof(float));
  if (!result.scores.empty()) std::memcpy(result.scores.data(), answer.scores().data(), answer.scores().size());
  result.sampled_points.assign(response.sampled_points().begin(), response.sampled_points().end());
  result.round_trip = absl::Now() - start;
  return result;
}

}  // namespace voxserve::client
