#pragma once

// The geometry pass of a program, whatever device makes it: how its points become voxels, and in which order the levels
// and rulebooks of a segment are made.

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

// The network's part of the parameters, and how many points and samples there are. Where point_begin, axes and is_valid
// lie is left to the caller. point_begin: [samples + 1] in host memory.
kernels::VoxelizeParams FixedVoxelizeParams(const Program& program, const std::vector<int64_t>& point_begin);

// Which voxels stay. Of a sample that will be refused any may: the order that costs least.
kernels::VoxelOrder VoxelOrderOf(const RunLimits& limits);

// How rulebooks are made.
struct MapOptions {
  const PlanTable* plans = nullptr;  // of the program: the forms of rulebooks, and how they are searched
  int64_t num_voxels = 0;            // chooses among the plans
  int64_t max_grid_bytes = 0;
};

// Makes the levels and rulebooks of a segment, and where samples begin on its sample_levels. context: of the batch
// under way, which has made the scores that decide about sites; null for the first segment. The maker's errors.
absl::Status MakeMaps(const Program& program, const ProgramSegment& segment, const StepContext* context,
                      const MapOptions& options, GeometryMaker& maker);

}  // namespace voxserve
