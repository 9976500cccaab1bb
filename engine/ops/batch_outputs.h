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
// The rows of points are reserved in the process's budget before they are allocated (InferResult::memory).

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/runtime/host_memory.h"
#include "engine/tensor/dtype.h"
#include "engine/tensor/infer_result.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

struct StepContext;

class BatchOutputs {
 public:
  // An output as its step makes it.
  struct Spec {
    std::string_view name;  // NamedOutput::kLabels, ...
    DType dtype = DType::kFloat32;
    int64_t columns = 0;
    bool is_for_all = true;       // false: for tasks with return_scores
    int64_t rows_per_sample = 0;  // of boxes, at most; else a sample has a row for each point that is answered

    int64_t row_bytes() const { return columns * SizeOf(dtype); }
  };

  // point_begin: [samples + 1]; a sample without points is answered without rows. memory: of the context; rows are
  // reserved in its budget. All outlive the outputs.
  BatchOutputs(BatchTasks tasks, const std::vector<int64_t>& point_begin, absl::Span<InferResult> results,
               HostMemory* memory);

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

  // ---- on the CPU

  bool IsWanted(size_t sample, const Spec& spec) const;
  // Adds an output of points to the sample's result, and returns the memory for its rows. RESOURCE_EXHAUSTED.
  absl::StatusOr<char*> AddRows(size_t sample, const Spec& spec);
  // Adds an output with the rows that are boxes; with none where the sample has no voxels. pitch: values from row to
  // row.
  void AddBoxes(size_t sample, const Spec& spec, const float* rows, int64_t pitch);

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
  // Writes all that was queued into the results. RESOURCE_EXHAUSTED.
  absl::Status Distribute();

 private:
  struct Queued {
    Spec spec;
    const char* rows = nullptr;  // pinned
  };

  NamedOutput& Add(size_t sample, const Spec& spec);
  absl::Status Reserve(size_t sample, int64_t bytes);

  const BatchTasks tasks_;
  const absl::Span<InferResult> results_;
  HostMemory* const memory_;
  std::vector<int64_t> num_answers_;         // by sample
  std::vector<uint32_t> not_finite_on_cpu_;  // memory of the next, on the CPU
  uint32_t* not_finite_;                     // [2, samples] points, candidates of boxes
  char* device_rows_ = nullptr;
  char* host_rows_ = nullptr;
  int64_t queued_bytes_ = 0;
  std::vector<Queued> queued_;  // in the order in which the steps made them
};

}  // namespace voxserve
