#pragma once

// The outputs of the batch under way: what the steps that make outputs write into. The executor makes one for each
// batch, and its thread alone uses it. An output is written for every sample that is OK and is to have it.
//
// On the CPU a step writes each sample's rows where they are sent from, in the sample's result. On a GPU a step makes
// the rows of the whole batch on the device and queues one copy to pinned memory; once the stream has been waited for,
// Distribute writes each sample's rows into its result.
//
// Steps count per sample what is not finite. The counts lie in host memory, where a GPU's kernels add to them: that is
// so seldom that it costs less than a copy of zeros.
//
// Rows of points and tensors, with their coordinates, are reserved in the process's budget before they are allocated
// (InferResult::memory).

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

struct StepContext;

class BatchOutputs {
 public:
  // An output as its step makes it.
  struct Spec {
    std::string_view name;  // NamedOutput::kLabels, ...
    DType dtype = DType::kFloat32;
    int64_t columns = 0;
    bool is_for_all = true;  // false: for tasks with return_scores
    // Of boxes (at most), of a tensor's samples and cells; else a sample has a row for each point that is answered, or
    // for each of its sites.
    int64_t rows_per_sample = 0;
    int tensor = -1;  // of SetTensors; -1: labels, scores or boxes

    int64_t row_bytes() const { return columns * SizeOf(dtype); }
  };

  // point_begin: [samples + 1]; a sample without points is answered without rows. memory: of the context; rows are
  // reserved in its budget. All outlive the outputs.
  BatchOutputs(BatchTasks tasks, const std::vector<int64_t>& point_begin, absl::Span<InferResult> results,
               HostMemory* memory);

  // Before the first step runs. tensors: the program's, which outlive the outputs. wanted: [samples].
  void SetTensors(absl::Span<const TensorInfo> tensors, std::vector<TensorSet> wanted, int dimension);

  size_t num_samples() const { return tasks_.size(); }
  // Returns how many points of a sample are answered: its first ones.
  int64_t num_answers(size_t sample) const { return num_answers_[sample]; }
  // The same of all samples together.
  int64_t num_answers() const;

  // [samples] counts that steps add to on the context's device: points that get the ignore label since their logits are
  // not finite (PointCounts), and candidates of boxes that are none since they are not finite.
  uint32_t* not_finite_points() const { return not_finite_; }
  uint32_t* not_finite_boxes() const { return not_finite_ + num_samples(); }
  // Writes the counts into the results. All steps have ended.
  void TakeNotFinite();
  // Converts tensors to the types that their tasks ask for, once all have been written. RESOURCE_EXHAUSTED.
  absl::Status ConvertTensors();

  // ---- on the CPU

  bool IsWanted(size_t sample, const Spec& spec) const;
  // Adds an output of points to the sample's result, and returns the memory for its rows. RESOURCE_EXHAUSTED.
  absl::StatusOr<char*> AddRows(size_t sample, const Spec& spec);
  // Adds an output with the rows that are boxes; with none where the sample has no voxels. pitch: values from row to
  // row.
  void AddBoxes(size_t sample, const Spec& spec, const float* rows, int64_t pitch);
  // Adds a tensor's rows of the sample, of samples or cells. RESOURCE_EXHAUSTED.
  absl::Status AddTensor(size_t sample, const Spec& spec, const kernels::ConstRows& rows);
  // The same of sites. rows, keys: the whole batch's; sample_begin: [samples + 1] where each sample's begin.
  enum class KeyOrder { kCanonical, kMorton };
  absl::Status AddSites(size_t sample, const Spec& spec, const kernels::ConstRows& rows, const uint64_t* keys,
                        const int64_t* sample_begin, KeyOrder order);

  // ---- on a GPU

  // Sets the page-locked memory for what is not finite, NotFiniteBytes, before the first step runs.
  void SetNotFinite(char* host_counts);
  int64_t NotFiniteBytes() const { return static_cast<int64_t>(2 * num_samples() * sizeof(uint32_t)); }
  // Sets the memory for the outputs of all steps (Step::OutputBytes), on the device and pinned.
  void SetMemory(char* device_rows, char* host_rows);
  // Returns where on the device the next output's rows are made.
  char* next_rows() const { return device_rows_ + queued_bytes_; }
  // Starts the copy of the num_rows rows that were made there.
  absl::Status Queue(const StepContext& context, const Spec& spec, int64_t num_rows);
  // The same of rows of sites, with the MortonKeys and [samples + 1] places where samples begin, which are on the
  // device.
  absl::Status QueueSites(const StepContext& context, const Spec& spec, int64_t num_rows, const uint64_t* keys,
                          const int64_t* sample_begin);
  // Writes all that was queued into the results. RESOURCE_EXHAUSTED.
  absl::Status Distribute();

 private:
  struct Queued {
    Spec spec;
    // Pinned.
    const char* rows = nullptr;
    int64_t num_rows = 0;
    const uint64_t* keys = nullptr;         // of sites; else null
    const int64_t* sample_begin = nullptr;  // likewise
  };

  NamedOutput& Add(size_t sample, const Spec& spec);
  OutputTensor& NewTensor(size_t sample, const Spec& spec);
  absl::Status AddTensorRows(OutputTensor& tensor, size_t sample, const kernels::ConstRows& rows);
  absl::Status AddCoordinates(OutputTensor& tensor, size_t sample, absl::Span<const uint64_t> keys, KeyOrder order);
  absl::Status Reserve(size_t sample, int64_t bytes);

  const BatchTasks tasks_;
  const absl::Span<InferResult> results_;
  HostMemory* const memory_;
  absl::Span<const TensorInfo> tensors_;
  std::vector<TensorSet> wanted_tensors_;  // by sample
  int dimension_ = 3;
  std::vector<int64_t> num_answers_;         // by sample
  std::vector<uint32_t> not_finite_on_cpu_;  // memory of the next, on the CPU
  uint32_t* not_finite_;                     // [2, samples] points, candidates of boxes
  char* device_rows_ = nullptr;
  char* host_rows_ = nullptr;
  int64_t queued_bytes_ = 0;
  std::vector<Queued> queued_;  // in the order in which the steps made them
};

}  // namespace voxserve
