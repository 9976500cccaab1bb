#pragma once

// A device with one context and its executor, as a worker has them, for tests and benchmarks of programs.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/compiler/compiler.h"
#include "engine/executor/executor.h"
#include "engine/model/model_config.h"
#include "engine/runtime/devices.h"
#include "tests/support/test_device.h"

namespace voxserve {

// How a network is computed: a device, the types there, and the plan of every convolution.
struct Variant {
  std::string name;
  support::Device device = support::Device::kCpu;
  ModelConfig::Precision precision = ModelConfig::Precision::kFloat32;
  ConvPlan plan = {};
  bool is_deterministic = false;
  bool merges_conv2ds = true;
};

// Returns the plan that a server computes by on such a device where it has no tuned one.
ConvPlan DefaultPlanOf(support::Device device, ModelConfig::Precision precision);

class DeviceRunner {
 public:
  struct Options {
    support::Device device = support::Device::kCpu;
    int num_threads = 2;
    int64_t device_memory_limit = 0;
    MemoryBudget* memory_budget = nullptr;  // of the host's memory; outlives the runner
  };

  static absl::StatusOr<std::unique_ptr<DeviceRunner>> Create(const Options& options);

  // For this runner's device, with its weights there. The runner outlives the program.
  absl::StatusOr<Program> Compile(const Graph& graph, const Variant& variant, int bytes_per_label = 1) const;

  Executor& executor() { return *executor_; }
  ExecutionContext& context() { return *context_; }
  const Device& device() const { return device_; }

  BatchOutput Run(const Program& program, const std::vector<const PointCloud*>& clouds, bool return_scores,
                  const RunLimits& limits = {}, const RunOptions& options = {});
  BatchOutput Run(const Program& program, const std::vector<InferTask>& tasks, const RunLimits& limits = {},
                  const RunOptions& options = {});

 private:
  explicit DeviceRunner(int num_threads) : pool_(num_threads) {}

  Device device_;
  kernels::ThreadPool pool_;
  std::optional<ExecutionContext> context_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace voxserve
