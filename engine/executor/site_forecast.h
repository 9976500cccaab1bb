#pragma once

// SiteForecast predicts, from earlier batches, upper limits for the numbers of sites of a batch's levels, so that a
// GPU's host can lay out memory without waiting for the counts. A forecast may be too low: its user detects that and
// runs the batch again.
//
// - Buckets: batches are grouped by their points, from one power of two to the next.
// - Rule: a level gets the highest recent ratio of sites to points in the bucket, plus an eighth. Behind a prune
//   `recent` means the last thousand batches, since scores may keep few sites of many scans, and then many of the next.
//   The largest coordinate of each axis gets the recent maximum plus an eighth. An axis that then has fewer bits than
//   another gets one more: a scan's height varies more than its width, and one bit seldom costs a pass of a sort.
// - Capacities are rounded up to few sizes, so that similar batches use the same memory layout.
// - Threads: not thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/base/unique_id.h"
#include "engine/geometry/batch_capacities.h"

namespace voxserve {

class SiteForecast {
 public:
  // Returns true if a batch of about this many points has been observed, except for a while after HadNoMemory.
  bool has_learned(int64_t num_points) const;
  // CapacitiesFor, MostVoxels and FewestVoxels need has_learned.
  BatchCapacities CapacitiesFor(int64_t num_points) const;
  // Return how many voxels (sites of level 0) such a batch has at most (without the added eighth) and at least, by
  // recent batches.
  double MostVoxels(int64_t num_points) const;
  double FewestVoxels(int64_t num_points) const;

  // Learns from a batch of num_points > 0 points.
  // - num_sites: by level, or kUnknown for a level; empty: no number is known. A bucket's first batch must know all.
  // - max_coordinate: DeviceGeometry::max_coordinate(), all 0 if the network does not count coordinates from the
  //   sample's minimum.
  // - behind_prunes: Program::LevelsBehindPrunes().
  static constexpr int64_t kUnknown = -1;
  void Learn(int64_t num_points, const std::vector<int64_t>& num_sites, const kernels::Axes& max_coordinate,
             const std::vector<int>& behind_prunes = {});
  // Notes that the device had no memory for the capacities of such a batch. The next kRest batches of the bucket get no
  // forecast.
  void HadNoMemory(int64_t num_points) { buckets_[IndexOf(num_points)].num_resting = kRest; }

 private:
  static constexpr int kRest = 100;  // batches

  struct Bucket {
    std::vector<double> sites_per_point;  // by level, the recent maximum; after prunes that of many batches
    double fewest_voxels_per_point = 0;
    std::array<double, kernels::kMaxDimension> max_coordinate = {};
    int num_resting = 0;  // number of batches that get no forecast yet
  };

  static size_t IndexOf(int64_t num_points);
  const Bucket& BucketOf(int64_t num_points) const { return buckets_[IndexOf(num_points)]; }

  std::array<Bucket, 64> buckets_;  // by the bits of the number of points
};

// SiteForecasts keeps a forecast for each program, by Program::id. A program's address would not do as the key: a
// program that is loaded later may get the address of a freed one, and would begin with what that one had learned.
class SiteForecasts {
 public:
  // Bounds the number of forecasts, since programs come and go. Where one more is needed, all are dropped, and their
  // programs learn again.
  static constexpr size_t kMostPrograms = 64;

  // Returns null if the program has no forecast. Valid until the next call of Of.
  const SiteForecast* Find(UniqueId program) const;
  // Returns the program's forecast, which is new if it had none. Valid until the next call of Of.
  SiteForecast& Of(UniqueId program);

 private:
  absl::flat_hash_map<uint64_t, SiteForecast> forecasts_;
};

}  // namespace voxserve
