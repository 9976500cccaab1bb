#pragma once

// Comparison runs a model's versions over scans: the float version once, and 8-bit versions with any choice of layers,
// whose answers it compares with the float version's. It runs on the CPU. One thread uses it.

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/calibrate/agreement.h"
#include "engine/compiler/program.h"
#include "engine/executor/executor.h"
#include "engine/model/model_version.h"
#include "engine/runtime/devices.h"
#include "engine/tensor/infer_task.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::calibrate {

class Comparison {
 public:
  // before_scan: called before each scan runs. If it returns an error, so does the function that runs scans.
  static absl::StatusOr<std::unique_ptr<Comparison>> Create(const LoadedModel& float_version, int threads,
                                                            std::function<absl::Status()> before_scan);
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;

  struct Scan {
    const InferTask* task;
    std::string name;  // in errors
  };

  // Runs the float version over a scan, and shows its values to on_value (RunOptions::on_value). Returns the errors of
  // on_value, and of the batch, which name the scan. The result's own status says whether the network takes the scan.
  using OnValue = std::function<absl::Status(int node, const kernels::ConstRows& rows)>;
  absl::StatusOr<InferResult> RunFloat(const Scan& scan, const OnValue& on_value = {});

  // Keeps the float version's answer to a scan, to compare others with it. The task outlives the Comparison.
  void Keep(Scan scan, InferResult answer);
  size_t num_kept() const { return kept_.size(); }

  // Compares the answers of an 8-bit version to the first num_scans kept scans. Errors name the scan. version: the
  // float version's network with scales, and a config with PRECISION_INT8. float_nodes: the layers that stay in float,
  // in place of the config's.
  absl::StatusOr<Agreement> Compare(const LoadedModel& version, const std::vector<std::string>& float_nodes,
                                    size_t num_scans);

  kernels::ThreadPool& pool() { return pool_; }

 private:
  struct Kept {
    Scan scan;
    InferResult answer;
  };

  Comparison(const LoadedModel& float_version, int threads, std::function<absl::Status()> before_scan);
  absl::StatusOr<InferResult> Run(const Program& program, const Scan& scan, const OnValue& on_value);

  const std::function<absl::Status()> before_scan_;
  const RunLimits limits_;
  const double least_score_;
  kernels::ThreadPool pool_;
  Device device_;  // the CPU
  ExecutionContext context_;
  const std::unique_ptr<Executor> executor_;
  Program float_program_;
  std::vector<Kept> kept_;
};

}  // namespace voxserve::calibrate
