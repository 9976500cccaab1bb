#pragma once

// Private to the library: these functions convert the server's answers, and check them against the request. Pure
// functions.

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cpp/api/detections.h"
#include "client/cpp/api/segmentation.h"
#include "client/cpp/api/tensor.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

// Returns the error INTERNAL (MALFORMED_RESPONSE), for an answer that contradicts its request.
absl::Status Malformed(absl::string_view what);

// The parts of a request that its answer must match.
struct Asked {
  uint64_t num_points = 0;
  bool wants_scores = false;
  uint64_t num_sampled = 0;  // points of the sample; 0: none was asked for
  WantedTensors tensors = {};
};

// Makes a Segmentation, Detections or Answer (tensors only). Answer::round_trip is the time from `start` to now.
// Returns the errors of CheckResponse, and INVALID_ARGUMENT (UNSUPPORTED_OUTPUT) if the response lacks this output.
template <typename Result>
absl::StatusOr<Result> FromResponse(v1::InferResponse response, const Asked& asked, absl::Time start);
template <>
absl::StatusOr<Segmentation> FromResponse<Segmentation>(v1::InferResponse response, const Asked& asked,
                                                        absl::Time start);
template <>
absl::StatusOr<Detections> FromResponse<Detections>(v1::InferResponse response, const Asked& asked, absl::Time start);
template <>
absl::StatusOr<Answer> FromResponse<Answer>(v1::InferResponse response, const Asked& asked, absl::Time start);

// Returns the error of Malformed if there are neither labels nor boxes nor tensors, if labels, scores, tensors or
// sampled points do not match the request, or if a box is not finite.
absl::Status CheckResponse(const v1::InferResponse& response, const Asked& asked);
std::vector<Stage> StagesOf(const v1::InferResponse& response);

}  // namespace voxserve::client
