#pragma once

// Rows of points to sites: every site reduces those of its points, which may be the sites of a finer level.

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
    int64_t max_points = 0;   // of a site; 0: all
    BufferSlice empty_slots;  // of kMax with max_points: on the sites, of in's type; none: there are none
    int32_t dimension = 3;
    int position_level = kPointLevel;  // of `in`
    int level = 0;                     // of the sites
    kernels::SiteRatio ratio;          // from voxels, or the finer sites, to the sites

    // The voxels have their points already; else the keys of level and position_level (of points: level 0) are read.
    bool needs_groups() const { return position_level != kPointLevel || level != 0; }
  };

  explicit PointToVoxelStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;

 private:
  // What belongs to each site; sorted_points, site_begin and workspace are left out.
  kernels::PointGroupsParams GroupsOf(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
