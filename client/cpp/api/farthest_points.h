#pragma once

// FarthestPoints asks for a sample of a cloud's points by farthest point sampling; see FarthestPointSample in
// proto/voxserve/v1/inference.proto.

#include <cstdint>
#include <optional>

#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

struct FarthestPoints {
  enum class Use { kReturn, kNetwork };  // the network gets all points, or only the sample; both return it

  uint32_t num_points = 0;            // points in the sample; 1 to 65,536, and no more than valid points
  uint32_t start_index = 0;           // the point selected first; if it is invalid, the next valid one
  std::optional<uint64_t> seed = {};  // if set, the first point is drawn at random, and start_index unused
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
