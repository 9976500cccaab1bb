#pragma once

// Runs whole networks by one plan and another, in turns, and says how long each took: A B C A B C, so that whatever
// drifts (clocks, temperature, other work of the machine) hits all alike. Times are the executor's own, on a GPU of its
// events, and medians over the repeats.
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

// Runs one scan as a batch of its own. Whether its scores are wanted the options say.
using RunScan = std::function<BatchOutput(const PlanTable&, const InferTask&, const ScanRunOptions&)>;

struct SearchProgress {
  std::string stage;
  double fraction = 0;  // of the whole search, 0 to 1; never falls
};

// Times of one plan. A plan that failed, or that was not measured on every scan before the stage's time was over, is
// not whole and has none.
struct PlanTimes {
  bool is_whole = false;
  std::vector<absl::Duration> network;   // by scan: voxelize, geometry, features and head
  std::vector<absl::Duration> geometry;  // by scan
  std::vector<absl::Duration> convs;     // by convolution, sums over the scans; where they were asked for

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

  // All outlive the timer.
  PlanTimer(const Program& program, const RunScan& run, Options options);

  // The work that follows may use time up to this share of the limit, and is expected to take so many runs.
  void BeginStage(std::string name, double end_fraction, int64_t num_runs);
  bool is_out_of_time() const;

  // CANCELLED, or the error of a device that failed. Any other failure is the output's (WhyFailed).
  absl::StatusOr<BatchOutput> Run(const PlanTable& plans, const InferTask& scan, const ScanRunOptions& options);
  // One bucket for all sizes.
  PlanTable TableOf(const NetworkPlan& plan) const;

  // By table.
  absl::StatusOr<std::vector<PlanTimes>> Time(const std::vector<PlanTable>& tables,
                                              const std::vector<const InferTask*>& scans, int repeats,
                                              bool times_convs);
  // By plan, each for all sizes.
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
  double stage_begin_ = 0, stage_end_ = 0;  // fractions
  int64_t stage_runs_ = 0, stage_done_ = 0;
  int64_t num_runs_ = 0;
};

// Why a batch's result or times are of no use; "" where they are.
std::string WhyFailed(const BatchOutput& output);

// The middle one; of an even number the mean of the two. Zero of none.
absl::Duration Median(std::vector<absl::Duration> times);

}  // namespace voxserve
