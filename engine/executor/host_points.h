#pragma once

// A batch's points in host memory, as the network reads them: the CPU's counterpart of device_points.h. The matrix lies
// in the context's `input`.
//
// Belongs to an executor, which fills it anew for every batch. Not thread-safe.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/graph.h"
#include "engine/runtime/execution_context.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

class HostPoints {
 public:
  // Reads the points of all samples, by the threads of the context's pool. point_begin: [samples + 1]; samples without
  // points in it are passed over. RESOURCE_EXHAUSTED for memory.
  absl::Status Read(const VoxelizeOp& op, BatchTasks tasks, const std::vector<int64_t>& point_begin,
                    ExecutionContext& context);

  const float* points() const { return points_; }               // [num_points, NumPointColumns]
  const uint8_t* is_valid() const { return is_valid_.data(); }  // [num_points]

  // Without the context's.
  int64_t allocated_bytes() const { return static_cast<int64_t>(is_valid_.capacity()); }

 private:
  const float* points_ = nullptr;
  std::vector<uint8_t> is_valid_;
};

}  // namespace voxserve
