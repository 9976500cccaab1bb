#pragma once

// Runs a Program on batches: the geometry pass, then the feature pass.
//
// One executor belongs to one worker's context and is called from its thread alone; it may run any program, and keeps
// the memory of the largest batch seen. Whatever is derived from a cloud is overwritten by the next batch.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/geometry/batch_geometry.h"
#include "engine/graph/program.h"
#include "engine/runtime/execution_context.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/point_counts.h"
#include "engine/tensor/sample_output.h"

namespace voxserve {

struct SampleInput {
  const PointCloud* cloud = nullptr;
  bool return_scores = false;
};

// What the model's configuration says about running it.
struct RunLimits {
  int ignore_label = 255;
  int64_t max_voxels = 0;            // per sample; 0: no limit
  bool keep_nearest_voxels = false;  // above max_voxels: drop the farthest (NEAREST_FIRST), else refuse the sample
  int64_t max_grid_bytes = int64_t{512} << 20;
};

struct BatchOutput {
  // The whole batch failed (memory, limits): samples is empty.
  absl::Status status;
  std::vector<SampleOutput> samples;  // one per input
  std::vector<StageTime> stages;      // of the whole batch
  int64_t grid_fallbacks = 0;
};

class Executor {
 public:
  explicit Executor(ExecutionContext* context) : context_(context) {}

  // At most kernels::kMaxSamples samples. A sample's voxels, levels and rulebooks are those of the sample alone, its
  // scores equal to rounding.
  BatchOutput Run(const Program& program, absl::Span<const SampleInput> inputs, const RunLimits& limits);

  // Bytes that the executor and its context hold for batches.
  int64_t allocated_bytes() const;

  // Of the batch that ran last; for tests and benchmarks.
  const BatchGeometry& geometry() const { return geometry_; }

 private:
  absl::Status CopyIn(const Program& program, absl::Span<const SampleInput> inputs, BatchOutput& output);
  absl::Status Voxelize(const Program& program, const RunLimits& limits, BatchOutput& output);
  absl::Status MakeGeometry(const Program& program, const RunLimits& limits, BatchOutput& output);
  absl::Status PlaceBuffers(const Program& program);
  StepContext MakeStepContext(const Program& program, absl::Span<const SampleInput> inputs, const RunLimits& limits,
                              BatchOutput& output) const;

  ExecutionContext* context_;
  BatchGeometry geometry_;
  std::vector<int64_t> point_begin_;   // [samples + 1] first point of each sample
  std::vector<uint8_t> is_valid_;      // [points]
  std::vector<int64_t> buffer_begin_;  // by buffer: bytes into the context's features
};

}  // namespace voxserve
