#include "deploy/calibrate/comparison.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "deploy/offline/model_argument.h"
#include "engine/base/status_macros.h"
#include "engine/serving/models/device_program.h"

namespace voxserve::calibrate {
namespace {

absl::Status AtScan(const std::string& name, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
}

}  // namespace

Comparison::Comparison(const LoadedModel& float_version, int threads, std::function<absl::Status()> before_scan)
    : before_scan_(std::move(before_scan)),
      limits_(offline::LimitsOf(float_version.config)),
      least_score_(LeastBoxScore(float_version.graph)),
      pool_(threads),
      context_{.device = device_.id, .pool = &pool_},
      executor_(Executor::Create(&context_)) {}

absl::StatusOr<std::unique_ptr<Comparison>> Comparison::Create(const LoadedModel& float_version, int threads,
                                                               std::function<absl::Status()> before_scan) {
  std::unique_ptr<Comparison> made(new Comparison(float_version, threads, std::move(before_scan)));
  ASSIGN_OR_RETURN(made->float_program_, MakeProgram(float_version.graph, float_version.config, made->device_));
  return made;
}

absl::StatusOr<InferResult> Comparison::RunFloat(const Scan& scan, const OnValue& on_value) {
  return Run(float_program_, scan, on_value);
}

void Comparison::Keep(Scan scan, InferResult answer) { kept_.push_back({std::move(scan), std::move(answer)}); }

absl::StatusOr<Agreement> Comparison::Compare(const LoadedModel& version, const std::vector<std::string>& float_nodes,
                                              size_t num_scans) {
  ModelConfig config = version.config;
  config.float_nodes = float_nodes;
  ASSIGN_OR_RETURN(const Program program, MakeProgram(version.graph, config, device_));
  Agreement agreement(least_score_);
  for (size_t i = 0; i < std::min(num_scans, kept_.size()); ++i) {
    ASSIGN_OR_RETURN(const InferResult found, Run(program, kept_[i].scan, /*on_value=*/{}));
    RETURN_IF_ERROR(AtScan(kept_[i].scan.name, found.status));
    agreement.Add(kept_[i].answer, found);
  }
  return agreement;
}

absl::StatusOr<InferResult> Comparison::Run(const Program& program, const Scan& scan, const OnValue& on_value) {
  RETURN_IF_ERROR(before_scan_());
  InferTask task = *scan.task;
  // Everything that the network computes, so that the scan reaches all of its layers.
  task.return_scores = program.has_scores;
  task.tensor_set = AllTensors(program.tensors.size());
  BatchReport report = executor_->Run(program, task, limits_, {.on_value = on_value});
  RETURN_IF_ERROR(AtScan(scan.name, report.status));
  InferResult& result = report.samples.front();
  result.ignore_label = limits_.ignore_label;
  return std::move(result);
}

}  // namespace voxserve::calibrate
