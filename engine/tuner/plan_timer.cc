#include "engine/tuner/plan_timer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/base/error_reason.h"
#include "engine/tensor/stage.h"

namespace voxserve {
namespace {

absl::Duration TimeOf(const BatchReport& output, std::initializer_list<Stage> stages) {
  absl::Duration total;
  for (const StageTime& time : output.stages) {
    if (std::find(stages.begin(), stages.end(), time.stage) != stages.end()) total += time.duration;
  }
  return total;
}

absl::Duration Sum(const std::vector<absl::Duration>& times) {
  return std::accumulate(times.begin(), times.end(), absl::Duration());
}

// ScanRepeats holds a plan's run times on one scan: one value for each repeat.
struct ScanRepeats {
  std::vector<absl::Duration> network, geometry;
  std::vector<std::vector<absl::Duration>> convs;  // by convolution

  void Add(const BatchReport& output) {
    network.push_back(TimeOf(output, {Stage::kVoxelize, Stage::kGeometry, Stage::kFeatures, Stage::kHead}));
    geometry.push_back(TimeOf(output, {Stage::kGeometry}));
    convs.resize(output.conv_times.size());
    for (size_t c = 0; c < convs.size(); ++c) convs[c].push_back(output.conv_times[c]);
  }
};

PlanTimes TimesOf(const std::vector<ScanRepeats>& by_scan) {
  PlanTimes times;
  times.is_whole = true;
  for (const ScanRepeats& repeats : by_scan) {
    times.network.push_back(Median(repeats.network));
    times.geometry.push_back(Median(repeats.geometry));
    times.convs.resize(repeats.convs.size());
    for (size_t c = 0; c < repeats.convs.size(); ++c) times.convs[c] += Median(repeats.convs[c]);
  }
  return times;
}

}  // namespace

absl::Duration Median(std::vector<absl::Duration> times) {
  if (times.empty()) return absl::ZeroDuration();
  std::sort(times.begin(), times.end());
  const size_t middle = times.size() / 2;
  return times.size() % 2 == 1 ? times[middle] : (times[middle - 1] + times[middle]) / 2;
}

absl::Duration PlanTimes::network_total() const { return Sum(network); }
absl::Duration PlanTimes::geometry_total() const { return Sum(geometry); }
absl::Duration PlanTimes::network_median() const { return Median(network); }

std::string WhyFailed(const BatchReport& output) {
  if (!output.status.ok()) return std::string(output.status.message());
  if (output.samples.size() != 1) return "the batch has no result";
  if (!output.samples[0].status.ok()) return std::string(output.samples[0].status.message());
  if (output.geometry_on_cpu) return "its maps do not fit the device";
  return "";
}

PlanTimer::PlanTimer(const Program& program, const RunScan& run, Options options)
    : program_(program), run_(run), options_(std::move(options)), start_(options_.now()) {}

void PlanTimer::BeginStage(std::string name, double end_fraction, int64_t num_runs) {
  stage_ = std::move(name);
  stage_begin_ = stage_end_;
  stage_end_ = std::max(stage_begin_, end_fraction);
  stage_runs_ = std::max<int64_t>(num_runs, 1);
  stage_done_ = 0;
}

bool PlanTimer::is_out_of_time() const {
  return options_.time_limit != absl::InfiniteDuration() && elapsed() >= options_.time_limit * stage_end_;
}

absl::StatusOr<BatchReport> PlanTimer::Run(const PlanTable& plans, const InferTask& scan,
                                           const ScanRunOptions& options) {
  const double share = static_cast<double>(std::min(stage_done_, stage_runs_)) / static_cast<double>(stage_runs_);
  const double fraction = stage_begin_ + share * (stage_end_ - stage_begin_);
  if (options_.on_progress && !options_.on_progress({.stage = stage_, .fraction = fraction})) {
    return WithReason(absl::CancelledError("the search was cancelled"), error_reason::kCancelled);
  }
  ++stage_done_;
  ++num_runs_;
  BatchReport output = run_(plans, scan, options);
  if (ReasonOf(output.status) == error_reason::kDeviceFailed) return output.status;
  return output;
}

PlanTable PlanTimer::TableOf(const NetworkPlan& plan) const {
  return PlanTable(program_, {{.plan = ByNode(program_, plan)}});
}

absl::StatusOr<std::vector<PlanTimes>> PlanTimer::Time(const std::vector<NetworkPlan>& plans,
                                                       const std::vector<const InferTask*>& scans, int repeats,
                                                       bool times_convs) {
  std::vector<PlanTable> tables;
  for (const NetworkPlan& plan : plans) tables.push_back(TableOf(plan));
  return Time(tables, scans, repeats, times_convs);
}

absl::StatusOr<std::vector<PlanTimes>> PlanTimer::Time(const std::vector<PlanTable>& tables,
                                                       const std::vector<const InferTask*>& scans, int repeats,
                                                       bool times_convs) {
  std::vector<std::vector<ScanRepeats>> measured(tables.size(), std::vector<ScanRepeats>(scans.size()));
  std::vector<bool> has_failed(tables.size(), false);
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (size_t p = 0; p < tables.size(); ++p) {
      for (size_t s = 0; s < scans.size() && !has_failed[p] && !is_out_of_time(); ++s) {
        const absl::StatusOr<BatchReport> output = Run(tables[p], *scans[s], {.times_convs = times_convs});
        if (!output.ok()) return output.status();
        has_failed[p] = !WhyFailed(*output).empty();
        measured[p][s].Add(*output);
      }
    }
  }
  std::vector<PlanTimes> times(tables.size());
  for (size_t p = 0; p < tables.size(); ++p) {
    const bool is_measured = std::all_of(measured[p].begin(), measured[p].end(),
                                         [](const ScanRepeats& of_scan) { return !of_scan.network.empty(); });
    if (is_measured && !has_failed[p]) times[p] = TimesOf(measured[p]);
  }
  return times;
}

}  // namespace voxserve
