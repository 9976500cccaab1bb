#pragma once

// FakeDevice replaces the device in tests of plan searches. Its times are functions of the plan that the test sets.
// They need no clock and have no noise, so the test knows the best plan. Not thread-safe.

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"
#include "engine/compiler/plan_table.h"
#include "engine/executor/executor.h"
#include "engine/tuner/plan_candidates.h"
#include "engine/tuner/plan_timer.h"
#include "tests/engine/tuner/fake_program.h"
#include "tests/support/named_outputs.h"

namespace voxserve {

class FakeDevice {
 public:
  explicit FakeDevice(const Program& program) : program_(program) {}

  // Tests set these functions. Times are in microseconds.
  std::function<double(size_t conv, const ConvPlan& plan, int64_t voxels)> conv_us = [](size_t, const ConvPlan&,
                                                                                        int64_t) { return 100; };
  std::function<double(const NetworkPlan& plans)> geometry_us = [](const NetworkPlan&) { return 50; };
  std::function<double(const PlanTable& table)> forms_us = [](const PlanTable&) { return 0; };
  std::function<float(const NetworkPlan& plans)> score_error = [](const NetworkPlan&) { return 0; };
  std::function<bool(const NetworkPlan& plans)> is_nondeterministic = [](const NetworkPlan&) { return false; };
  std::function<absl::Status(const NetworkPlan& plans)> fails = [](const NetworkPlan&) { return absl::OkStatus(); };
  int64_t refused_above = 1 << 30;  // scans with more points get the error "too many voxels"
  absl::Duration run_takes;         // each run moves the fake clock (now()) by this time

  absl::Time now() const { return now_; }
  int64_t num_runs() const { return num_runs_; }

  RunScan AsRunScan() {
    return [this](const PlanTable& plans, const InferTask& scan, const ScanRunOptions& options) {
      return Run(plans, scan, options);
    };
  }

 private:
  BatchReport Run(const PlanTable& table, const InferTask& scan, const ScanRunOptions& options) {
    ++num_runs_;
    now_ += run_takes;
    const int64_t voxels = scan.num_points();
    const NetworkPlan& plans = table.ForVoxels(voxels);
    BatchReport output;
    output.status = fails(plans);
    if (!output.status.ok()) return output;
    InferResult& sample = output.samples.emplace_back();
    sample.counts.voxels = voxels;
    if (voxels > refused_above) {
      sample.status = absl::InvalidArgumentError("too many voxels");
      return output;
    }
    double features_us = 0;
    for (size_t c = 0; c < plans.size(); ++c) features_us += conv_us(c, plans[c], voxels);
    output.stages = {{Stage::kCopyIn, absl::Milliseconds(num_runs_)},  // noise that the search must ignore
                     {Stage::kVoxelize, absl::Microseconds(10)},
                     {Stage::kGeometry, absl::Microseconds(geometry_us(plans) + forms_us(table))},
                     {Stage::kFeatures, absl::Microseconds(features_us)},
                     {Stage::kHead, absl::Microseconds(5)}};
    sample.outputs = {LabelsOf(std::vector<uint8_t>(100, 1))};
    if (options.return_scores) {
      std::vector<float> scores(100, 4.0f);
      scores[7] += score_error(plans);
      if (is_nondeterministic(plans)) scores[8] += 1e-6f * static_cast<float>(num_runs_ % 100);
      sample.outputs.push_back(ScoresOf(scores));
    }
    if (options.times_convs) {
      for (size_t c = 0; c < plans.size(); ++c) {
        output.conv_times.push_back(absl::Microseconds(conv_us(c, plans[c], voxels)));
      }
      // A GPU counts pairs only if a plan reads them.
      for (size_t i = 0; i < program_.rulebooks.size(); ++i) {
        const ProgramRulebook& rulebook = program_.rulebooks[i];
        const RulebookForms& forms = table.forms()[rulebook.is_swapped() ? static_cast<size_t>(rulebook.swap_of) : i];
        const bool is_counted = forms.pairs || !program_.convs.front().is_on_cuda;
        output.rulebook_sizes.push_back(is_counted ? SizesOf(rulebook, voxels) : std::vector<int64_t>());
      }
    }
    return output;
  }

  const Program& program_;
  absl::Time now_ = absl::UnixEpoch();
  int64_t num_runs_ = 0;
};

}  // namespace voxserve
