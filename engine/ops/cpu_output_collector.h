#pragma once

// CpuOutputCollector collects a batch's outputs on the CPU: a step writes each sample's rows directly into the sample's
// result. OutputCollector tells what the methods do.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/ops/output_collector.h"

namespace voxserve {

class CpuOutputCollector final : public OutputCollector {
 public:
  // Takes the arguments of OutputCollector.
  CpuOutputCollector(BatchTasks tasks, const std::vector<int64_t>& point_begin, absl::Span<InferResult> results,
                     HostMemory* memory)
      : OutputCollector(tasks, point_begin, results, memory), not_finite_(2 * tasks.size()) {
    SetNotFinite(not_finite_.data());
  }
  CpuOutputCollector(const CpuOutputCollector&) = delete;  // the base knows the counts by address
  CpuOutputCollector& operator=(const CpuOutputCollector&) = delete;

  using OutputCollector::AddBoxes;
  using OutputCollector::AddRows;
  using OutputCollector::AddTensor;
  using OutputCollector::IsWanted;
  // keys: CoordinateKeys.
  absl::Status AddSites(size_t sample, const Spec& spec, const kernels::ConstRows& rows, const uint64_t* keys,
                        const int64_t* sample_begin) {
    return OutputCollector::AddSites(sample, spec, rows, keys, sample_begin, KeyOrder::kCanonical);
  }

 private:
  std::vector<uint32_t> not_finite_;
};

}  // namespace voxserve
