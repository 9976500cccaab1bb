#pragma once

// The networks that benchmarks run over inputs that differ: MinkUNet 1.0x and 0.5x on real scans, and model folders.
//
// An input is a scan of a drive, turned, thinned and shifted (varied_scans.h). There are 20 for each scan; batch i of n
// holds the inputs i to i + n - 1. Weights are random (only shapes matter for time) unless a model has trained ones.
// Errors end the program, but for those of PreparedCase::Run.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/model_version.h"
#include "tests/bench/network_cases.h"
#include "tests/engine/device_runner.h"
#include "tests/support/real_scans.h"

namespace voxserve::bench {

inline constexpr int kNumInputs = 20;

// A value that is made when it is first asked for, once for all copies.
template <typename T>
class Lazy {
 public:
  Lazy() = default;
  explicit Lazy(std::function<T()> make) : shared_(std::make_shared<Shared>(Shared{std::move(make), {}})) {}

  const T& operator*() const {
    if (!shared_->value) shared_->value = shared_->make();
    return *shared_->value;
  }

 private:
  struct Shared {
    std::function<T()> make;
    std::optional<T> value;
  };
  std::shared_ptr<Shared> shared_;
};

// A network and the inputs that it runs on.
struct BenchCase {
  std::string name;
  Lazy<LoadedModel> model;
  Lazy<std::vector<PointCloud>> inputs;
  std::vector<int> batches = {1, 2, 4, 8};
  bool is_deterministic = false;
  bool captures = false;
};

// A case on the device, ready to run. The case outlives it.
class PreparedCase {
 public:
  PreparedCase(const BenchCase& c, support::Device device);
  ~PreparedCase();
  PreparedCase(const PreparedCase&) = delete;
  PreparedCase& operator=(const PreparedCase&) = delete;

  // Runs the batch that begins with input `index`. The status tells of samples' errors too.
  BatchOutput Run(int batch, int index, const RunOptions& options, bool return_scores = false);
  BatchOutput RunOrDie(int batch, int index, const RunOptions& options);

  const std::vector<PointCloud>& inputs() const { return inputs_; }
  const Program& program() const { return program_; }
  DeviceRunner& runner() { return *runner_; }

 private:
  const BenchCase& case_;
  const LoadedModel& model_;
  const std::vector<PointCloud>& inputs_;
  std::unique_ptr<DeviceRunner> runner_;
  Program program_;
};

// Returns MinkUNet of that width on a scan of each kind.
std::vector<NetworkCase> MinkUNetScans(double width);

// Returns the case of a network, named after its width and scan.
BenchCase CaseOf(const NetworkCase& network);

// Returns MinkUNet 1.0x and 0.5x on real scans, and the models. with_deterministic: also MinkUNet 1.0x on the first
// scan with the server's flag. models: folders, each with the name of its scan in tests/support/real_scans.h; "SCAN+t"
// gives its points a field t.
std::vector<BenchCase> VariedCases(const std::vector<std::pair<std::string, std::string>>& models,
                                   bool with_deterministic);

// Returns MinkUNet 1.0x from 1,000 to 1,000,000 voxels, in batches of 1.
std::vector<BenchCase> VoxelCases();

}  // namespace voxserve::bench
