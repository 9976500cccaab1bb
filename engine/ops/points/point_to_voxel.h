#pragma once

// PointToVoxelStep reduces rows of points to sites: every site reduces the rows of its points. The points may be the
// sites of a finer level.

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
    int64_t max_points = 0;   // points that a site counts, the first ones; 0: all
    BufferSlice empty_slots;  // with kMax and max_points: an empty slot's row, on the sites, of in's type; or empty
    int32_t dimension = 3;
    int position_level = kPointLevel;  // the level of `in`
    int level = 0;                     // the level of the sites
    kernels::SiteRatio ratio;          // from the unit of voxels or finer sites to the unit of the sites

    // False for points and voxels, since the geometry pass has grouped them. Where true, the keys of `level` and of
    // position_level (for points, of level 0) are read.
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
