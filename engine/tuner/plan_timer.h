#pragma once

// Measures plans by running whole networks in turns: A B C A B C. Drift (clocks, temperature, other work on the
// machine) then affects all plans alike. The executor measures the times, on a GPU with its events; results are medians
// over the repeats.
//
// Not thread-safe.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/executor/executor.h"
#include "engine/tensor/infer_task.h"
#include "engine/tuner/plan_candidates.h"

namespace voxserve {

struct ScanRunOptions {
  bool times_convs = false;
  bool return_scores = false;
};

// Runs one scan as a batch of its own. The options say whether scores are needed.
using RunScan = std::function<BatchOutput(const PlanTable&, const InferTask&, const ScanRunOptions&)>;

struct SearchProgress {
  std::string stage;
  double fraction = 0;  // part of the whole search, 0 to 1; never decreases
};

// The times of one plan. is_whole is false, and there are no times, if the plan failed or was not measured on every
// scan within the stage's time.
struct PlanTimes {
  bool is_whole = false;
  std::vector<absl::Duration> network;   // by scan: voxelize, geometry, features and head
  std::vector<absl::Duration> geometry;  // by scan
  std::vector<absl::Duration> convs;     // by convolution, summed over the scans; only if asked for

  absl::Duration network_total() const;
  absl::Duration geometry_total() const;
  absl::Duration network_median() const;  // over the scans
};

class PlanTimer {
 public:
  struct Options {
    absl::Duration time_limit = absl::InfiniteDuration();
    std::function<bool(const SearchProgress&)> on_progress;  // false: stop
    std::function<absl::Time()> now;
  };

  // All arguments must outlive the timer.
  PlanTimer(const Program& program, const RunScan& run, Options options);

  // Begins a stage that may use time up to this share of the limit and is expected to take num_runs runs.
  void BeginStage(std::string name, double end_fraction, int64_t num_runs);
  bool is_out_of_time() const;

  // Errors are CANCELLED and the error of a failed device. WhyFailed of the output tells any other failure.
  absl::StatusOr<BatchOutput> Run(const PlanTable& plans, const InferTask& scan, const ScanRunOptions& options);
  // Makes a table with one bucket for all sizes.
  PlanTable TableOf(const NetworkPlan& plan) const;

  // Measures several tables.
  absl::StatusOr<std::vector<PlanTimes>> Time(const std::vector<PlanTable>& tables,
                                              const std::vector<const InferTask*>& scans, int repeats,
                                              bool times_convs);
  // Measures several plans, each used for all sizes.
  absl::StatusOr<std::vector<PlanTimes>> Time(const std::vector<NetworkPlan>& plans,
                                              const std::vector<const InferTask*>& scans, int repeats,
                                              bool times_convs);

  int64_t num_runs() const { return num_runs_; }
  absl::Duration elapsed() const { return options_.now() - start_; }

 private:
  const Program& program_;
  const RunScan& run_;
  const Options options_;
  const absl::Time start_;
  std::string stage_;
  double stage_begin_ = 0, stage_end_ = 0;  // as fractions
  int64_t stage_runs_ = 0, stage_done_ = 0;
  int64_t num_runs_ = 0;
};

// Returns why a batch's result or times cannot be used; "" if they can.
std::string WhyFailed(const BatchOutput& output);

// Returns the middle value, for an even number the mean of the middle two, for none 0.
absl::Duration Median(std::vector<absl::Duration> times);

}  // namespace voxserve
