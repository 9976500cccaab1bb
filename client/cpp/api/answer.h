#pragma once

// Answer holds the parts that every answer of the server has. Segmentation and Detections add labels and boxes; an
// Answer by itself is the result for a model whose tensors were requested.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cpp/api/tensor.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

// A step of the server's work on a request, and its time.
struct Stage {
  std::string name;  // decode, queue, copy_in, sample, voxelize, geometry, features, head, copy_out, encode
  absl::Duration duration;
};

struct Answer {
  std::string model;
  int64_t version = 0;  // the version that answered
  std::string device;   // "cpu" or "cuda:N"
  std::string request_id;
  std::vector<uint32_t> sampled_points;  // with a sample: indices into the cloud, in order of selection
  v1::PointCounts counts;
  std::vector<v1::FeatureWarning> warnings;  // features whose values are likely in another unit than the model's
  std::vector<Stage> stages;                 // times on the server
  absl::Duration round_trip;                 // from the call to the decoded answer, measured by the client
  std::vector<Tensor> tensors;               // the tensors that the request asked for, in the model's order

  // Returns null if there is no tensor with that name.
  const Tensor* FindTensor(absl::string_view name) const {
    for (const Tensor& tensor : tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
};

// Returns a warning if nearly all points of a scan lie outside of the range that the model accepts, which is mostly a
// matter of the coordinates' unit or origin. Returns "" otherwise. A cloud of less than 100 such points is no scan.
inline std::string RangeWarning(const Answer& answer) {
  constexpr double kFewestPoints = 100, kShareOutside = 0.9;
  const v1::PointCounts& counts = answer.counts;
  const uint64_t points = counts.used() + counts.out_of_range() + counts.dropped() + counts.unsampled();
  const double least = std::max(kFewestPoints, kShareOutside * static_cast<double>(points));
  if (static_cast<double>(counts.out_of_range()) < least) return "";
  return absl::StrCat(counts.out_of_range(), " of ", points, " points lie outside of the range that ", answer.model,
                      " accepts, and are left out; coordinates are metres from the sensor");
}

// Returns a warning if points have no label, or boxes are left out, since the network's numbers for them are NaN or
// infinite. Returns "" otherwise.
inline std::string NotFiniteWarning(const Answer& answer) {
  const v1::PointCounts& counts = answer.counts;
  std::vector<std::string> lost;
  if (counts.not_finite() > 0) {
    lost.push_back(absl::StrCat("for ", counts.not_finite(), " of ", counts.used(), " points, which get no label"));
  }
  if (counts.boxes_not_finite() > 0) {
    lost.push_back(absl::StrCat("in ", counts.boxes_not_finite(), " candidates of boxes, which are left out"));
  }
  if (lost.empty()) return "";
  return absl::StrCat(answer.model, " has NaN or infinite values ", absl::StrJoin(lost, ", and "),
                      "; where float16 is too narrow for them, PRECISION_BFLOAT16 is not");
}

}  // namespace voxserve::client
