#pragma once

// The library's own: answers from the wire, checked against what was asked.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/api/detections.h"
#include "client/cpp/api/segmentation.h"
#include "client/cpp/api/tensor.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

// INTERNAL, MALFORMED_RESPONSE: an answer that contradicts its request.
absl::Status Malformed(absl::string_view what);

// What an answer is to.
struct Asked {
  uint64_t num_points = 0;
  bool wants_scores = false;
  uint64_t num_sampled = 0;  // points of a sample; 0: none was asked for
  WantedTensors tensors = {};
};

// Makes a Segmentation, Detections, or an Answer, which has tensors. Malformed as CheckResponse says; INVALID_ARGUMENT
// (UNSUPPORTED_OUTPUT), naming the call to make instead, where the model has another of them alone. round_trip is from
// `start` to now.
template <typename Result>
absl::StatusOr<Result> FromResponse(v1::InferResponse response, const Asked& asked, absl::Time start);
template <>
absl::StatusOr<Segmentation> FromResponse<Segmentation>(v1::InferResponse response, const Asked& asked,
                                                        absl::Time start);
template <>
absl::StatusOr<Detections> FromResponse<Detections>(v1::InferResponse response, const Asked& asked, absl::Time start);
template <>
absl::StatusOr<Answer> FromResponse<Answer>(v1::InferResponse response, const Asked& asked, absl::Time start);

// Malformed where there are neither labels nor boxes nor tensors, where labels, scores, tensors or sampled points are
// not those of the request, or where a box is not finite.
absl::Status CheckResponse(const v1::InferResponse& response, const Asked& asked);
std::vector<Stage> StagesOf(const v1::InferResponse& response);

}  // namespace voxserve::client
