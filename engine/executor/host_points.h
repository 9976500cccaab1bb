#pragma once

// HostPoints reads a batch's clouds into the matrix that the network reads, in host memory. It is the CPU's counterpart
// of DevicePoints. The matrix lies in the context's arena `input`.
//
// An executor owns it, and every batch overwrites its results. Not thread-safe.

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/graph.h"
#include "engine/runtime/execution_context.h"
#include "engine/tensor/infer_task.h"
#include "kernels/core/scratch.h"

namespace voxserve {

class HostPoints {
 public:
  // memory outlives the HostPoints.
  explicit HostPoints(std::pmr::memory_resource* memory) : is_valid_(memory) {}

  // Reads the points of all samples on the context's thread pool. point_begin: [samples + 1]; samples without points
  // are skipped. Returns RESOURCE_EXHAUSTED or throws std::bad_alloc if memory does not suffice.
  absl::Status Read(const VoxelizeOp& op, BatchTasks tasks, const std::vector<int64_t>& point_begin,
                    ExecutionContext& context);

  const float* points() const { return points_; }               // [num_points, NumPointColumns]
  const uint8_t* is_valid() const { return is_valid_.data(); }  // [num_points]

  // Returns the bytes that the last batch needed.
  int64_t needed_bytes() const { return needed_bytes_; }

 private:
  const float* points_ = nullptr;
  int64_t needed_bytes_ = 0;
  kernels::ScratchVector<uint8_t> is_valid_;
};

}  // namespace voxserve
