#pragma once

// CudaOutputCollector collects a batch's outputs on a GPU: a step makes the rows of the whole batch on the device and
// queues one copy to pinned memory, or its kernel writes them there. After the host has waited for the stream,
// Distribute writes each sample's rows into its result.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/ops/output_collector.h"

namespace voxserve {

struct StepContext;

class CudaOutputCollector final : public OutputCollector {
 public:
  // Takes the arguments of OutputCollector.
  CudaOutputCollector(BatchTasks tasks, const std::vector<int64_t>& point_begin, absl::Span<InferResult> results,
                      HostMemory* memory)
      : OutputCollector(tasks, point_begin, results, memory) {}

  // Sets the page-locked memory for the not_finite counts, NotFiniteBytes, before the first step runs.
  void SetNotFinite(char* host_counts);
  int64_t NotFiniteBytes() const { return static_cast<int64_t>(2 * num_samples() * sizeof(uint32_t)); }
  // Sets the memory for the outputs of all steps, on the device and in page-locked host memory: the sum of the steps'
  // Step::OutputBytes each. An output has the same place in both, even if its kernel writes only to the host's.
  void SetMemory(char* device_rows, char* host_rows);
  // Returns the device memory for the next output's rows.
  char* next_rows() const { return device_rows_ + queued_bytes_; }
  // Starts the copy of the num_rows rows in next_rows().
  absl::Status Queue(const StepContext& context, const Spec& spec, int64_t num_rows);
  // Returns the page-locked memory to which a kernel may write the next output's rows itself. For small rows that is
  // quicker than a copy, which begins microseconds after the kernel.
  char* next_host_rows() const { return host_rows_ + queued_bytes_; }
  // Adds the num_rows rows that the stream's kernels write to next_host_rows().
  void AddWritten(const Spec& spec, int64_t num_rows);
  // Does the same as Queue, for rows of sites. Also copies keys (MortonKeys) and sample_begin ([samples + 1]), which
  // are in device memory.
  absl::Status QueueSites(const StepContext& context, const Spec& spec, int64_t num_rows, const uint64_t* keys,
                          const int64_t* sample_begin);
  // An output whose rows the stream's work writes. The pointers are to page-locked memory.
  struct Queued {
    Spec spec;
    const char* rows = nullptr;
    int64_t num_rows = 0;                   // may be more than the rows that there are
    const uint64_t* keys = nullptr;         // for rows of sites; else null
    const int64_t* sample_begin = nullptr;  // for rows of sites; else null
  };
  // The outputs that were queued so far, in the order in which the steps made them.
  const std::vector<Queued>& queued() const { return queued_; }
  // Replaces the queued outputs. A batch that is replayed has those of its captured batch.
  void SetQueued(std::vector<Queued> queued);
  // Writes all queued outputs into the results. Reserves their bytes. Call it after the host has waited for the stream.
  absl::Status Distribute();

 private:
  char* device_rows_ = nullptr;
  char* host_rows_ = nullptr;
  int64_t queued_bytes_ = 0;
  std::vector<Queued> queued_;
};

}  // namespace voxserve
