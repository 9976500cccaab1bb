#pragma once

// The library's own: answers from the wire, checked against what was asked.

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/segmentation.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

// INTERNAL, MALFORMED_RESPONSE: an answer that contradicts its request.
absl::Status Malformed(absl::string_view what);

// Malformed where labels or scores are not those of num_points points. round_trip is from `start` to now.
absl::StatusOr<Segmentation> FromResponse(v1::InferResponse response, uint64_t num_points, bool wants_scores,
                                          absl::Time start);

// Of FromResponse: the check alone, and the stages.
absl::Status CheckResponse(const v1::InferResponse& response, uint64_t num_points, bool wants_scores);
std::vector<Stage> StagesOf(const v1::InferResponse& response);

}  // namespace voxserve::client
