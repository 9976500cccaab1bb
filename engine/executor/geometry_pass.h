#pragma once

// These functions are the part of the geometry pass that is the same on every device: the parameters by which points
// become voxels, and the order in which a segment's levels and rulebooks are made.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/compiler/plan_table.h"
#include "engine/compiler/program.h"
#include "engine/executor/executor.h"
#include "engine/geometry/geometry_maker.h"
#include "engine/ops/step.h"
#include "kernels/points/voxel_limit.h"
#include "kernels/points/voxelize.h"

namespace voxserve {

// Returns the voxelize parameters that follow from the network and the batch's size. The caller sets point_begin, axes
// and is_valid. point_begin: [samples + 1] in host memory.
kernels::VoxelizeParams FixedVoxelizeParams(const Program& program, const std::vector<int64_t>& point_begin);

// Returns the order in which voxels are kept up to max_voxels. If the model rejects larger samples, any order will do,
// and this returns the cheapest.
kernels::VoxelOrder VoxelOrderOf(const RunLimits& limits);

// Says how MakeMaps makes rulebooks.
struct MapOptions {
  const PlanTable* plans = nullptr;  // made for the program: the forms of its rulebooks, and the searches
  int64_t num_voxels = 0;            // chooses one of the table's plans
  int64_t max_grid_bytes = 0;
};

// Makes the levels, rulebooks and orders of a segment, and finds where each sample's rows begin on its sample_levels.
// context: the current batch's; it holds the scores by which later segments filter sites. Null for the first segment.
// Returns the maker's errors.
absl::Status MakeMaps(const Program& program, const ProgramSegment& segment, const StepContext* context,
                      const MapOptions& options, GeometryMaker& maker);

}  // namespace voxserve
