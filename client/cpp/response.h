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

// What an answer is to.
struct Asked {
  uint64_t num_points = 0;
  bool wants_scores = false;
  uint64_t num_sampled = 0;  // points of a sample; 0: none was asked for
};

// Malformed where labels, scores or sampled points are not those of the request. round_trip is from `start` to now.
absl::StatusOr<Segmentation> FromResponse(v1::InferResponse response, const Asked& asked, absl::Time start);

// Of FromResponse: the check alone, and the stages.
absl::Status CheckResponse(const v1::InferResponse& response, const Asked& asked);
std::vector<Stage> StagesOf(const v1::InferResponse& response);

}  // namespace voxserve::client
