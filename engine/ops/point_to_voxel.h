#pragma once

// Rows of points to sites: every site reduces those of its points.

#include "engine/ops/step.h"
#include "kernels/point_groups.h"
#include "kernels/pool.h"

namespace voxserve {

class PointToVoxelStep final : public Step {
 public:
  struct Options {
    BufferSlice in;   // on points
    BufferSlice out;  // on sites
    kernels::PoolReduce reduce = kernels::PoolReduce::kMax;
    int32_t dimension = 3;
    int level = 0;             // of the sites; the keys of this one and the voxels are read unless it is theirs
    kernels::SiteRatio ratio;  // from voxels to the sites
  };

  explicit PointToVoxelStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;

 private:
  // The way from the voxels' points to those of other sites; sorted_points, site_begin and workspace are left out.
  kernels::PointGroupsParams GroupsOf(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
