#include <algorithm>
#include <iterator>
#include <limits>
#include <string_view>

#include "engine/model/node_parameters.h"

namespace voxserve {

std::optional<FarthestPointSampleOp> ReadFarthestPointSample(const model::v1::FarthestPointSampling& proto,
                                                             const ProblemsAt& at) {
  constexpr uint32_t kMost = std::numeric_limits<int32_t>::max();
  if (proto.num_points() < 1 || proto.num_points() > kMost) {
    at.Add("num_points is ", proto.num_points(), "; it must be 1 to ", kMost);
    return std::nullopt;
  }
  FarthestPointSampleOp op;
  op.points = {.num_points = proto.num_points(), .start_index = proto.start_index(), .restricts_network = true};
  if (proto.has_seed()) op.points.seed = proto.seed();
  return op;
}

bool BeginsWithSpatialAxes(const VoxelizeOp& op) {
  constexpr std::string_view kNames[] = {"x", "y", "z"};
  return op.axes.size() >= std::size(kNames) && std::equal(std::begin(kNames), std::end(kNames), op.axes.begin());
}

}  // namespace voxserve
