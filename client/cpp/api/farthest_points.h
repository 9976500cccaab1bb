#pragma once

// FarthestPoints asks for a sample of a cloud's points; see FarthestPointSample in proto/voxserve/v1/inference.proto.

#include <cstdint>
#include <optional>

#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

struct FarthestPoints {
  enum class Use { kReturn, kNetwork };  // the network sees all points, or only the sample

  uint32_t num_points = 0;            // 1 to the number of the cloud's valid points
  uint32_t start_index = 0;           // the point selected first; if it is invalid, the next valid one
  std::optional<uint64_t> seed = {};  // draws the first point at random, instead of start_index
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
