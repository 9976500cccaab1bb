#pragma once

// Lists the cases of benchmarks in which every batch has other inputs: MinkUNet 1.0x and 0.5x on real scans, and model
// folders.
//
// An input is a frame of the drive from which a scan comes, turned, thinned and shifted (varied_scans.h). Each scan has
// kNumInputs inputs unless a caller asks for another number. Batch i of size n holds the inputs i to i + n - 1, modulo
// their number. MinkUNet has random weights, since only shapes matter for time; model folders have their own. Errors
// end the program, except those of PreparedCase::Run.

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

// A value that is made when it is first used. Copies share the value. Not thread-safe.
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

// A case whose network is compiled and whose inputs are loaded, ready to run on a device. The case must outlive this
// object.
class PreparedCase {
 public:
  PreparedCase(const BenchCase& c, support::Device device);
  ~PreparedCase();
  PreparedCase(const PreparedCase&) = delete;
  PreparedCase& operator=(const PreparedCase&) = delete;

  // Runs a batch of `batch` inputs that begins with input `index`. If a sample fails, the returned status is the
  // sample's error.
  BatchReport Run(int batch, int index, const RunOptions& options, bool return_scores = false);
  BatchReport RunOrDie(int batch, int index, const RunOptions& options);

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

// Returns MinkUNet of that width on each scan of tests/support/real_scans.h.
std::vector<NetworkCase> MinkUNetScans(double width);

// Returns the case of a network, named after its width and scan.
BenchCase CaseOf(const NetworkCase& network, int num_inputs = kNumInputs);

// Returns MinkUNet 1.0x and 0.5x on real scans, and the models. If with_deterministic is true, also returns
// MinkUNet 1.0x on the first scan as the server's flag --deterministic computes it. models: pairs of a model folder and
// the name of a scan in tests/support/real_scans.h. A folder may end with ":N", its version; else it is 1. If "+t"
// follows the scan's name, points get a field t (WithTime of varied_scans.h).
std::vector<BenchCase> VariedCases(const std::vector<std::pair<std::string, std::string>>& models,
                                   bool with_deterministic, int num_inputs = kNumInputs);

// Returns the same case in 8 bits: scales are the largest values on the first input, and the first and last layers stay
// in floats. The case must not be in 8 bits yet.
BenchCase InInt8(const BenchCase& float_case);

// Returns MinkUNet 1.0x from 1,000 to 1,000,000 voxels, in batches of 1.
std::vector<BenchCase> VoxelCases();

}  // namespace voxserve::bench
