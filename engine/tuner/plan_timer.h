#pragma once

// PlanTimer measures plans by running the whole network with each plan in turn: A B C A B C. Drift (clocks,
// temperature, other work on the machine) then affects all plans alike. The executor measures the times, on a GPU with
// CUDA events. A result is the median over the repeats. SearchPlan (plan_search.h) uses it.
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
using RunScan = std::function<BatchReport(const PlanTable&, const InferTask&, const ScanRunOptions&)>;

struct SearchProgress {
  std::string stage;
  double fraction = 0;  // part of the whole search, 0 to 1; never decreases
};

// The times of one plan. If the plan failed, or was not measured on every scan within the stage's time, is_whole is
// false and there are no times.
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

  // Begins a stage of the search. The stage is out of time when end_fraction of the time limit has passed since the
  // timer was made. num_runs: the expected number of runs, for the progress.
  void BeginStage(std::string name, double end_fraction, int64_t num_runs);
  bool is_out_of_time() const;

  // Runs one scan as a batch. Returns CANCELLED if on_progress returned false, and the batch's error if the device
  // failed. After any other failure it returns the batch's output, of which WhyFailed says why it cannot be used.
  absl::StatusOr<BatchReport> Run(const PlanTable& plans, const InferTask& scan, const ScanRunOptions& options);
  // Makes a table with one bucket for all sizes.
  PlanTable TableOf(const NetworkPlan& plan) const;

  // Measures several tables. The errors are those of Run. times_convs: also fills PlanTimes::convs.
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
std::string WhyFailed(const BatchReport& output);

// Returns the median. For an even number of times it is the mean of the middle two, for no times 0.
absl::Duration Median(std::vector<absl::Duration> times);

}  // namespace voxserve
