#pragma once

// SiteForecast says how many sites the levels of a program's next batch will have at most, from the batches before it,
// so that a GPU's host can make room for them without waiting until they are counted. It may be wrong: who uses it
// finds out, and runs the batch again.
//
// Batches are told apart by their points, from one power of two to the next. A level is expected to have as many sites
// a point as such batches had lately, and an eighth more; coordinates to reach as far, and an eighth more. Rooms are
// rounded up to few sizes, so that batches of a kind lie in the same memory. Not thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/geometry/site_rooms.h"

namespace voxserve {

class SiteForecast {
 public:
  // True once a batch of about so many points has been learned.
  bool has_learned(int64_t num_points) const { return !BucketOf(num_points).sites_per_point.empty(); }
  // Both need has_learned.
  SiteRooms Rooms(int64_t num_points) const;
  // Voxels, level 0, as they are expected, without what is added for room.
  double Voxels(int64_t num_points) const;

  // A batch of num_points > 0 had so many sites, by level. max_coordinate: DeviceGeometry's; 0: there was none.
  void Learn(int64_t num_points, const std::vector<int64_t>& num_sites, int64_t max_coordinate);

 private:
  struct Bucket {
    std::vector<double> sites_per_point;  // by level
    double max_coordinate = 0;
  };

  static size_t IndexOf(int64_t num_points);
  const Bucket& BucketOf(int64_t num_points) const { return buckets_[IndexOf(num_points)]; }

  std::array<Bucket, 64> buckets_;  // by the bits of the number of points
};

}  // namespace voxserve
