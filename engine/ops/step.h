#pragma once

// A step of a program: one operator with its weights, its place in memory and what was fused into it, ready to run.
//
// Every operator has a pair of files here with its step: the constructor takes what the compiler decided, Run calls the
// kernel of the context's device. Steps are immutable once they are compiled (and, for a GPU, uploaded) and shared by
// all threads of their device; everything that changes is in the StepContext of the batch under way.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
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

class BatchOutputs;

// Memory of the feature pass. Sizes follow from the batch, so the executor places buffers for each batch; two whose
// [first_step, last_step] do not meet may share memory.
struct Buffer {
  int level = 0;                // whose rows it has: a coordinate level's, kSampleLevel or kPointLevel
  int64_t rows_per_sample = 1;  // of kSampleLevel
  DType dtype = DType::kFloat32;
  int32_t channels = 0;
  int64_t pitch = 0;  // values a row; rows are padded to 16 bytes
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
};

// The batch under way. Valid during one Executor::Run.
struct StepContext {
  ExecutionContext* execution = nullptr;
  const BatchGeometry* geometry = nullptr;          // on the CPU
  const DeviceGeometry* device_geometry = nullptr;  // on a GPU
  GroupingCache* groupings = nullptr;               // on a GPU; filled by the convolutions that ask first
  const std::vector<ConvPlan>* plans = nullptr;     // by convolution
  // By level; on a GPU that counts its sites while the batch runs, the room for them. Rows::num_rows has their number.
  const std::vector<int64_t>* num_sites = nullptr;
  const std::vector<Buffer>* buffers = nullptr;
  const std::vector<char*>* buffer_data = nullptr;  // by buffer; null: not placed yet
  void* scratch = nullptr;                          // the largest of the steps' ScratchBytes

  kernels::ConstRows points;                          // [num_points]: axes, then features; on the context's device
  const std::vector<int64_t>* point_begin = nullptr;  // [samples + 1]
  const int64_t* device_point_begin = nullptr;        // the same, on the context's device
  int ignore_label = 255;
  BatchOutputs* outputs = nullptr;  // that the steps which make outputs write into

  // No data where the slice is none, or memory is not placed yet (then the shape alone is of meaning).
  kernels::Rows At(const BufferSlice& slice) const;
  // [samples + 1] where the rows of each sample begin in a slice on one of its segment's sample_levels; on the device.
  const int64_t* SampleBegin(const BufferSlice& slice) const;
  // [sites] of a level of Program::key_levels, on the device: CoordinateKeys on the CPU, MortonKeys on a GPU. In the
  // order of the level's rows, which is that of the keys unless the CPU made a GPU's maps.
  const uint64_t* Keys(int level) const;
  // [1] how many sites a level has, on the device; null on the CPU.
  const int64_t* DeviceNumSites(int level) const;
  // [num_points] the voxel of each point or a negative code (kernels/points/voxelize.h), on the device.
  const int32_t* PointToVoxel() const;
  int32_t num_samples() const { return static_cast<int32_t>(point_begin->size()) - 1; }
  // Null on the CPU.
  CudaContext* cuda() const { return execution->cuda.get(); }
  cudaStream_t stream() const { return execution->cuda->stream.view().get(); }
  int64_t num_points() const { return point_begin->back(); }
};

// What a step does with its sums before it stores them.
struct FusedEpilogue {
  Weights bias;          // [out channels] in the type that the step's kernel asks for; empty: none
  BufferSlice residual;  // added before the activation
  kernels::Activation activation;

  kernels::Epilogue In(const StepContext& context) const;
};

// True where none of the slices has a row for every point of the batch.
bool AreOffPoints(const std::vector<Buffer>& buffers, std::initializer_list<BufferSlice> slices);

class Step {
 public:
  virtual ~Step() = default;

  // INTERNAL for what the compiler got wrong, RESOURCE_EXHAUSTED for memory, UNAVAILABLE (DEVICE_FAILED) for a GPU that
  // broke.
  virtual absl::Status Run(const StepContext& context) const = 0;

  // INTERNAL where the step will fail on the CPU whatever the batch. Asked once, when its model is loaded.
  virtual absl::Status Check() const { return absl::OkStatus(); }

  // Brings the weights to a GPU, in the order and type that the GPU's kernel reads. Once, before the first Run there.
  virtual absl::Status Upload(WeightUploader&) { return absl::OkStatus(); }

  // True where Run on a GPU must know on the host how many sites levels and pairs rulebooks have: numbers of rows on
  // the device do not do. plans: by convolution.
  virtual bool NeedsSizes(const std::vector<ConvPlan>&) const { return false; }

  // True where a CUDA graph that captured Run on a GPU may be replayed for another batch of the same shape
  // (executor/captured_batches.h): Run does no more than launch, and no launch follows from the batch's points, but for
  // where they lie. Of a step that NeedsSizes nobody asks.
  virtual bool IsCapturable(const std::vector<Buffer>&) const { return false; }

  // Memory of a GPU that Run needs for itself there while it runs.
  virtual size_t ScratchBytes(const StepContext&) const { return 0; }
  // True where it grows with the batch's samples, whatever they are: ScratchBytes asks then for nothing but their
  // number and buffers, and may be called before there is anything else.
  virtual bool has_scratch_of_samples() const { return false; }

  // Bytes of BatchOutputs' memory that a step needs on a GPU for the output that it makes. It may be called early, as
  // ScratchBytes of samples, when there are no outputs yet.
  virtual int64_t OutputBytes(const StepContext&) const { return 0; }

  std::string name;  // of the graph's node that it began as
  // Labels, boxes or sites that scores decide about need it; what only scores or tensors need is skipped where nobody
  // asked for them.
  bool is_for_all = false;
  bool is_for_scores = false;
  TensorSet for_tensors = 0;
};

}  // namespace voxserve
