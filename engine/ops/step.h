#pragma once

// A Step is one operator of a program, ready to run: its weights, its buffers and its fused epilogue. The executor runs
// the steps in order (the feature pass), after it has made the batch's levels and rulebooks (the geometry pass). A
// level is the list of sites, the occupied voxels of all samples, at one unit.
//
// Every operator has a pair of files here with its step. The constructor takes the compiler's decisions, and Run calls
// the kernel for the context's device. Steps are immutable once they are compiled (and, for a GPU, uploaded), and all
// threads of their device share them. Everything that changes is in the StepContext of the current batch.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/geometry/batch_geometry.h"
#include "engine/geometry/device_geometry.h"
#include "engine/geometry/grouping_cache.h"
#include "engine/geometry/row_level.h"
#include "engine/ops/conv_plan.h"
#include "engine/ops/weights.h"
#include "engine/runtime/execution_context.h"
#include "engine/tensor/dtype.h"
#include "engine/tensor/output_tensor.h"
#include "kernels/core/epilogue.h"
#include "kernels/core/rows.h"

namespace voxserve {

class CpuOutputCollector;
class CudaOutputCollector;
class OutputCollector;

// A Buffer is memory that steps read and write. Its size depends on the batch, so the executor places buffers for each
// batch. Two buffers may share memory if their [first_step, last_step] do not overlap.
struct Buffer {
  int level = 0;                // which rows it has: a coordinate level, kSampleLevel or kPointLevel (row_level.h)
  int64_t rows_per_sample = 1;  // for kSampleLevel
  DType dtype = DType::kFloat32;
  int32_t channels = 0;
  int64_t pitch = 0;  // values from row to row; rows are padded to 16 bytes
  int first_step = 0;
  int last_step = 0;

  int64_t NumRows(const std::vector<int64_t>& num_sites, int64_t num_samples, int64_t num_points) const {
    if (level == kPointLevel) return num_points;
    return level == kSampleLevel ? num_samples * rows_per_sample : num_sites[static_cast<size_t>(level)];
  }
};

// Columns [column, column + channels) of a buffer.
struct BufferSlice {
  int buffer = -1;  // -1: none
  int32_t column = 0;
  int32_t channels = 0;

  bool operator==(const BufferSlice&) const = default;
};

// StepContext describes the current batch. It is valid during one Executor::Run.
struct StepContext {
  ExecutionContext* execution = nullptr;
  const BatchGeometry* geometry = nullptr;          // on the CPU
  const DeviceGeometry* device_geometry = nullptr;  // on a GPU
  GroupingCache* groupings = nullptr;               // on a GPU; filled by the convolutions that ask first
  const std::vector<ConvPlan>* plans = nullptr;     // how each convolution runs
  // The number of sites of each level. Where a GPU counts the sites while the batch runs, the values are capacities,
  // and Rows::num_rows points to the true number in device memory.
  const std::vector<int64_t>* num_sites = nullptr;
  const std::vector<Buffer>* buffers = nullptr;
  const std::vector<char*>* buffer_data = nullptr;  // by buffer; null: not placed yet
  void* scratch = nullptr;                          // on a GPU: the largest of the steps' ScratchBytes

  // [num_points]: axes, then features; on the context's device. A captured step must not use the capacity.
  kernels::ConstRows points;
  const std::vector<int64_t>* point_begin = nullptr;  // [samples + 1]
  const int64_t* device_point_begin = nullptr;        // point_begin on the context's device
  // Not 0: the batch is captured or replayed (executor/captured_batches.h), so launches must be the same for every
  // number of points up to this one. Every point is answered.
  int64_t captured_points = 0;
  int ignore_label = 255;
  // Written by the steps that make outputs.
  CpuOutputCollector* cpu_outputs = nullptr;    // on the CPU
  CudaOutputCollector* cuda_outputs = nullptr;  // on a GPU

  // Returns a slice's rows. Their data is null if the slice is empty. It is also null if the buffer has no memory yet;
  // the shape is then valid. Rows::num_rows is set where `capacity` may be more than the number of rows.
  kernels::Rows At(const BufferSlice& slice) const;
  // Returns [samples + 1] on the device: where the rows of each sample begin. The slice's level must be one of its
  // segment's sample_levels (ProgramSegment).
  const int64_t* SampleBegin(const BufferSlice& slice) const;
  // Returns [sites] on the device: the keys of a level of Program::key_levels, in the order of its rows. The keys are
  // CoordinateKeys on the CPU and MortonKeys on a GPU. They ascend, except where a GPU's batch has a geometry that the
  // CPU made (uploaded_geometry.h).
  const uint64_t* Keys(int level) const;
  // Returns [sites of its level] on the device: the row at each place of the program's order. Null: place i is row i.
  const int32_t* RowOfPlace(int order) const;
  // Returns the groups that are spread over the windows of the program's order, on the device.
  SpreadGroups SpreadGroupsOf(int order) const;
  // Returns [1] on the device: a level's number of sites. Null on the CPU.
  const int64_t* DeviceNumSites(int level) const;
  // Returns [1] on the device: the number of points. Null if point_capacity() is this number.
  const int64_t* DeviceNumPoints() const { return captured_points > 0 ? device_point_begin + num_samples() : nullptr; }
  // Returns [num_points] on the device: the voxel of each point, or a negative code (kernels/points/voxelize.h).
  const int32_t* PointToVoxel() const;
  // Return [num_points] and [voxels + 1] on the device: the points sorted by voxel, and where each voxel's begin.
  const int32_t* SortedPoints() const;
  const int64_t* VoxelBegin() const;
  // Returns cpu_outputs or cuda_outputs.
  OutputCollector* outputs() const;
  int32_t num_samples() const { return static_cast<int32_t>(point_begin->size()) - 1; }
  // Null on the CPU.
  CudaContext* cuda() const { return execution->cuda.get(); }
  cudaStream_t stream() const { return execution->cuda->stream.view().get(); }
  int64_t num_points() const { return point_begin->back(); }
  // Returns the number of points that the memory and the launches are sized for.
  int64_t point_capacity() const { return std::max(num_points(), captured_points); }
};

// FusedEpilogue is the work that a step does on its sums before it stores them.
struct FusedEpilogue {
  Weights bias;          // [out channels] in the type that the step's kernel reads; empty: none
  BufferSlice residual;  // added before the activation
  kernels::Activation activation;

  // Returns the kernel's parameters for the batch.
  kernels::Epilogue In(const StepContext& context) const;
};

class Step {
 public:
  virtual ~Step() = default;

  // Runs the step; on a GPU it queues work on the context's stream. Where StepContext::captured_points is set, a CUDA
  // graph that captured this work is replayed for other batches of the same shape (executor/captured_batches.h): the
  // launches must then depend neither on the batch's points nor on the numbers of points and sites, unless the step
  // NeedsSizes. Returns INTERNAL if the compiler made a wrong program, RESOURCE_EXHAUSTED if memory does not suffice,
  // and UNAVAILABLE (DEVICE_FAILED) if the GPU failed. On the CPU it throws std::bad_alloc if the context's memory
  // refuses an allocation; the executor catches this.
  virtual absl::Status Run(const StepContext& context) const = 0;

  // Returns INTERNAL if Run would fail on the CPU for every batch. Called once, when the step's model is loaded.
  virtual absl::Status Check() const { return absl::OkStatus(); }

  // Uploads the weights to a GPU, in the order and type that the GPU's kernel reads. Called once, before the first Run.
  // Returns INVALID_ARGUMENT (BAD_MODEL) if a weight is beyond its type's range or the GPU's kernel cannot run the
  // step, and RESOURCE_EXHAUSTED if memory does not suffice.
  virtual absl::Status Upload(WeightUploader&) { return absl::OkStatus(); }

  // Returns true if Run on a GPU needs the numbers of sites or pairs on the host. The host must then wait for these
  // numbers before it calls Run. plans: one for each of the program's convolutions.
  virtual bool NeedsSizes(const std::vector<ConvPlan>&) const { return false; }

  // Returns the bytes of GPU memory that Run needs as a workspace.
  virtual size_t ScratchBytes(const StepContext&) const { return 0; }
  // Returns true if ScratchBytes depends only on the number of samples, not on their points. ScratchBytes may then be
  // called with a context that has only this number and the buffers.
  virtual bool has_scratch_of_samples() const { return false; }

  // Returns the bytes that the step's output takes in the memory of CudaOutputCollector; 0 for a step that makes
  // no output. It may be called with a context that has only the number of samples and the buffers; outputs() is then
  // null.
  virtual int64_t OutputBytes(const StepContext&) const { return 0; }

  std::string name;  // the name of the first graph node in the step
  // is_for_all: the step runs in every batch, because labels, boxes or the sites that a prune keeps depend on it. A
  // step that serves only scores or tensors is skipped in a batch in which no task asks for them.
  bool is_for_all = false;
  bool is_for_scores = false;
  TensorSet for_tensors = 0;
};

}  // namespace voxserve
