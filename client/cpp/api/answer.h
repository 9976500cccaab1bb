#pragma once

// What every answer of the server tells, whatever its model finds in a cloud.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cpp/api/tensor.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

struct Stage {
  std::string name;  // decode, queue, copy_in, sample, voxelize, geometry, features, head, copy_out, encode
  absl::Duration duration;
};

struct Answer {
  std::string model;
  int64_t version = 0;  // that answered
  std::string device;   // "cpu" or "cuda:N"
  std::string request_id;
  std::vector<uint32_t> sampled_points;  // of InferOptions::sample: indices into the cloud, in the order of selection
  v1::PointCounts counts;
  std::vector<Stage> stages;    // on the server
  absl::Duration round_trip;    // from the call to the decoded answer, as seen here
  std::vector<Tensor> tensors;  // that the request asked for, in the model's order

  // Null where there is no tensor of that name.
  const Tensor* FindTensor(absl::string_view name) const {
    for (const Tensor& tensor : tensors) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }
};

}  // namespace voxserve::client
