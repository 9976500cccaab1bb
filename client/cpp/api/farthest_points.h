#pragma once

// N farthest points of a cloud, which an answer may bring along; see FarthestPointSample in
// proto/voxserve/v1/inference.proto.

#include <cstdint>
#include <optional>

#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

struct FarthestPoints {
  enum class Use { kReturn, kNetwork };  // the network sees all points, or these alone

  uint32_t num_points = 0;            // 1 to the number of the cloud's valid points
  uint32_t start_index = 0;           // selected first; where it is invalid: the next valid one
  std::optional<uint64_t> seed = {};  // that draws the start instead
  Use use = Use::kReturn;

  v1::FarthestPointSample ToProto() const {
    v1::FarthestPointSample message;
    message.set_num_points(num_points);
    if (seed) {
      message.set_seed(*seed);
    } else {
      message.set_start_index(start_index);
    }
    message.set_use(use == Use::kNetwork ? v1::FarthestPointSample::USE_NETWORK : v1::FarthestPointSample::USE_RETURN);
    return message;
  }
};

}  // namespace voxserve::client
