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
  // True once a batch of about so many points has been learned, but for a while after HadNoMemory.
  bool has_learned(int64_t num_points) const;
  // The next three need has_learned.
  SiteRooms Rooms(int64_t num_points) const;
  // The voxels, sites of level 0, that batches had lately: at most, without what is added for room, and at least.
  double MostVoxels(int64_t num_points) const;
  double FewestVoxels(int64_t num_points) const;

  // A batch of num_points > 0 had so many sites, by level; empty: nobody knows. max_coordinate: DeviceGeometry's; 0:
  // there was none.
  void Learn(int64_t num_points, const std::vector<int64_t>& num_sites, int64_t max_coordinate);
  // The device had no memory for the rooms of such a batch: the next ones do without.
  void HadNoMemory(int64_t num_points) { buckets_[IndexOf(num_points)].num_resting = kRest; }

 private:
  static constexpr int kRest = 100;  // batches

  struct Bucket {
    std::vector<double> sites_per_point;  // by level, at most
    double fewest_voxels_per_point = 0;
    double max_coordinate = 0;
    int num_resting = 0;  // batches to come that get no rooms
  };

  static size_t IndexOf(int64_t num_points);
  const Bucket& BucketOf(int64_t num_points) const { return buckets_[IndexOf(num_points)]; }

  std::array<Bucket, 64> buckets_;  // by the bits of the number of points
};

}  // namespace voxserve
