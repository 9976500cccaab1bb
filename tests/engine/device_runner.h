#pragma once

// DeviceRunner owns a device, one execution context and the context's executor, as a worker of the server does. Tests
// and benchmarks compile programs for the device with it and run them.

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

// Says how a network is compiled: the device, the dtype of features and weights, and the one plan (search, dataflow,
// block and grouping) that every convolution uses.
struct Variant {
  std::string name;
  support::Device device = support::Device::kCpu;
  ModelConfig::Precision precision = ModelConfig::Precision::kFloat32;
  ConvPlan plan = {};
  bool is_deterministic = false;
  bool merges_products = true;
  bool fuses_mlps = true;                     // if the GPU has the kernel
  bool rotates_products = true;               // where LinearStep::CanRotate
  bool leaves_out_boxes = true;               // where Conv2dStep::CanLeaveOutBoxes
  std::vector<std::string> float_nodes = {};  // of kInt8
};

// Returns the plan that a server uses on such a device if it has no tuned plan.
ConvPlan DefaultPlanOf(support::Device device, ModelConfig::Precision precision);

// Returns true if the device runs networks in 8 bits. The device must exist.
bool MultipliesInInt8(support::Device device);

class DeviceRunner {
 public:
  struct Options {
    support::Device device = support::Device::kCpu;
    int num_threads = 2;
    int64_t device_memory_limit = 0;        // bytes of the GPU's memory; 0: no limit
    MemoryBudget* memory_budget = nullptr;  // limits the host's memory; must outlive the runner
  };

  static absl::StatusOr<std::unique_ptr<DeviceRunner>> Create(const Options& options);

  // Compiles a program for this runner's device and, on a GPU, uploads its weights. The runner must outlive the
  // program.
  absl::StatusOr<Program> Compile(const Graph& graph, const Variant& variant, int bytes_per_label = 1) const;

  Executor& executor() { return *executor_; }
  ExecutionContext& context() { return *context_; }
  const Device& device() const { return device_; }

  BatchReport Run(const Program& program, const std::vector<const PointCloud*>& clouds, bool return_scores,
                  const RunLimits& limits = {}, const RunOptions& options = {});
  BatchReport Run(const Program& program, const std::vector<InferTask>& tasks, const RunLimits& limits = {},
                  const RunOptions& options = {});

 private:
  explicit DeviceRunner(int num_threads) : pool_(num_threads) {}

  Device device_;
  kernels::ThreadPool pool_;
  std::optional<ExecutionContext> context_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace voxserve
