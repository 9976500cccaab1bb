#pragma once

// PointToVoxelStep reduces rows of points to rows of sites: every site gets the maximum, mean or sum of its points'
// rows. The points may be the sites of a finer level.

#include "engine/ops/step.h"
#include "kernels/points/point_groups.h"
#include "kernels/rows/pool.h"

namespace voxserve {

class PointToVoxelStep final : public Step {
 public:
  struct Options {
    BufferSlice in;   // on points or finer sites
    BufferSlice out;  // on sites
    kernels::PoolReduce reduce = kernels::PoolReduce::kMax;
    int64_t max_points = 0;   // a site counts only its first max_points points; 0: all
    BufferSlice empty_slots;  // only with kMax and max_points: rows that join the maximum of sites with fewer points
    int32_t dimension = 3;
    int position_level = kPointLevel;  // the level of `in`
    int level = 0;                     // the level of the sites
    kernels::SiteRatio ratio;          // from the unit of voxels or finer sites to the unit of the sites

    // Returns false if `in` is on points and `level` is 0, since the geometry pass has grouped points by voxel. Else
    // the step groups them, by the keys of `level` and of position_level (for points, of level 0).
    bool needs_groups() const { return position_level != kPointLevel || level != 0; }
  };

  explicit PointToVoxelStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;

 private:
  // Returns the parameters that group points by site, without sorted_points, site_begin and workspace.
  kernels::PointGroupsParams GroupsOf(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
