#pragma once

// OutputCollector collects the outputs of the current batch; the steps that make outputs write into it. The executor
// makes one for each batch, and only the thread that runs the batch uses it. A sample gets an output if the sample has
// not failed and its task asked for that output. This class is what all devices share: CpuOutputCollector is the CPU's,
// CudaOutputCollector a GPU's.
//
// Steps count values that are not finite, per sample. The counts lie in host memory, page-locked for a GPU, whose
// kernels add to them there. Such values are rare, so these additions cost less than a copy of counts that are nearly
// always 0.
//
// The bytes of outputs on points and of tensors, with their coordinates, are reserved in the process's MemoryBudget
// before they are allocated. InferResult::memory holds the reservation. A method that reserves returns
// RESOURCE_EXHAUSTED if the budget refuses.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/runtime/host_memory.h"
#include "engine/tensor/dtype.h"
#include "engine/tensor/infer_result.h"
#include "engine/tensor/infer_task.h"
#include "engine/tensor/output_tensor.h"
#include "kernels/core/rows.h"

namespace voxserve {

class OutputCollector {
 public:
  // Describes an output as its step makes it.
  struct Spec {
    std::string_view name;  // NamedOutput::kLabels, ...
    DType dtype = DType::kFloat32;
    int64_t columns = 0;
    bool is_for_all = true;  // false: for tasks with return_scores
    // For boxes: the most rows of a sample. For a tensor on samples or image cells: the rows of each sample. 0 for
    // other outputs, which have a row for each answered point or each site.
    int64_t rows_per_sample = 0;
    int tensor = -1;  // index into the tensors of SetTensors; -1: labels, scores or boxes

    int64_t row_bytes() const { return columns * SizeOf(dtype); }
  };

  // Call before the first step runs. tensors: the program's, which outlive this object. wanted: [samples].
  void SetTensors(absl::Span<const TensorInfo> tensors, std::vector<TensorSet> wanted, int dimension);

  size_t num_samples() const { return tasks_.size(); }
  // Returns how many of a sample's points the answer has. They are the sample's first points.
  int64_t num_answers(size_t sample) const { return num_answers_[sample]; }
  // Returns how many points the answers of all samples have together.
  int64_t num_answers() const;
  // Returns true if every point of the batch is answered. point_begin: the constructor's.
  bool AnswersAllPoints(const std::vector<int64_t>& point_begin) const { return num_answers() == point_begin.back(); }

  // [samples] counts that steps add to on the context's device. The first counts points that get the ignore label
  // because of logits that are not finite (PointCounts). The second counts box candidates that are dropped because one
  // of their numbers is not finite.
  uint32_t* not_finite_points() const { return not_finite_; }
  uint32_t* not_finite_boxes() const { return not_finite_ + num_samples(); }
  // Writes the counts of values that are not finite into the results. Call it after all steps have ended.
  void TakeNotFinite();
  // Converts tensors to the types that their tasks ask for. Call it after all tensors have been written. Reserves the
  // converted bytes.
  absl::Status ConvertTensors();

 protected:
  // point_begin: [samples + 1]; a sample without points gets outputs without rows. memory: the context's; bytes are
  // reserved in its budget. All arguments outlive this object.
  OutputCollector(BatchTasks tasks, const std::vector<int64_t>& point_begin, absl::Span<InferResult> results,
                  HostMemory* memory);
  ~OutputCollector() = default;

  // Sets the memory of the counts of values that are not finite: [2, samples], all 0.
  void SetNotFinite(uint32_t* counts) { not_finite_ = counts; }

  // Returns true if the sample gets this output.
  bool IsWanted(size_t sample, const Spec& spec) const;
  // Adds an output on points to the sample's result, and returns the memory for its rows, which it has reserved.
  absl::StatusOr<char*> AddRows(size_t sample, const Spec& spec);
  // Adds an output with the boxes of a sample: the rows that hold a box. A sample without voxels gets no boxes. rows:
  // [spec.rows_per_sample] the sample's; pitch: values from row to row.
  void AddBoxes(size_t sample, const Spec& spec, const float* rows, int64_t pitch);
  // Adds a tensor on samples or image cells. rows: those of this sample. Reserves the tensor's bytes.
  absl::Status AddTensor(size_t sample, const Spec& spec, const kernels::ConstRows& rows);
  // Adds a tensor on sites, with their coordinates. rows, keys: the whole batch's; sample_begin: [samples + 1] where
  // each sample's rows begin. order: keys are CoordinateKeys (kCanonical, from the CPU) or MortonKeys (kMorton, from a
  // GPU). Reserves the tensor's bytes.
  enum class KeyOrder { kCanonical, kMorton };
  absl::Status AddSites(size_t sample, const Spec& spec, const kernels::ConstRows& rows, const uint64_t* keys,
                        const int64_t* sample_begin, KeyOrder order);
  // Adds an output on points, or boxes, that has no rows yet.
  NamedOutput& Add(size_t sample, const Spec& spec);
  absl::Status Reserve(size_t sample, int64_t bytes);

 private:
  OutputTensor& NewTensor(size_t sample, const Spec& spec);
  absl::Status AddTensorRows(OutputTensor& tensor, size_t sample, const kernels::ConstRows& rows);
  absl::Status AddCoordinates(OutputTensor& tensor, size_t sample, absl::Span<const uint64_t> keys, KeyOrder order);

  const BatchTasks tasks_;
  const absl::Span<InferResult> results_;
  HostMemory* const memory_;
  absl::Span<const TensorInfo> tensors_;
  std::vector<TensorSet> wanted_tensors_;  // by sample
  int dimension_ = 3;
  std::vector<int64_t> num_answers_;  // by sample
  uint32_t* not_finite_ = nullptr;    // [2, samples] counts of points and of box candidates
};

}  // namespace voxserve
