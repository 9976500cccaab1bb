#pragma once

// SiteForecast says how many sites the levels of a program's next batch will have at most, from the batches before it,
// so that a GPU's host can make room for them without waiting until they are counted. It may be wrong: who uses it
// finds out, and runs the batch again.
//
// A level is expected to have as many sites a point as lately, and an eighth more; a batch's coordinates to reach as
// far, and an eighth more. Rooms are rounded up to few sizes, so that batches of a kind lie in the same memory. Not
// thread-safe.

#include <cstdint>
#include <vector>

#include "engine/geometry/site_rooms.h"

namespace voxserve {

class SiteForecast {
 public:
  // True once a batch has been learned.
  bool has_learned() const { return !sites_per_point_.empty(); }
  // Needs has_learned.
  SiteRooms Rooms(int64_t num_points) const;
  // Voxels, level 0, as they are expected, without what is added for room.
  double Voxels(int64_t num_points) const;

  // A batch of num_points > 0 had so many sites, by level. max_coordinate: DeviceGeometry's; 0: there was none.
  void Learn(int64_t num_points, const std::vector<int64_t>& num_sites, int64_t max_coordinate);

 private:
  std::vector<double> sites_per_point_;  // by level
  double max_coordinate_ = 0;
};

}  // namespace voxserve
