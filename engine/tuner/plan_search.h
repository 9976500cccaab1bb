#pragma once

// SearchPlan searches for the plan with which a program runs fastest on a device, for the sizes of the given scans. A
// plan says how each convolution runs: its dataflow, block, grouping and map search (engine/ops/conv_plan.h). The
// search is Algorithm 5 of TorchSparse (Tang et al., MLSys 2022, Appendix B), applied to the whole network at once.
//
// The paper times each layer alone and takes the (epsilon, S), two parameters of adaptive grouping, with the lowest
// latency. This search only runs whole networks. In each run every convolution tries one of its candidates, or runs by
// the default plan if none is left, and the executor times every convolution. So a candidate is timed at its place in
// the network, with the caches as the layer before leaves them, and a thousand candidates of fifty convolutions take
// some hundred runs.
//
// Scans are divided into buckets by their numbers of voxels (scan_buckets.h). For each bucket, the search:
//
// 1. runs every candidate (plan_candidates.h) on the scan with the bucket's median number of voxels, and keeps a few of
//    each convolution: the fastest ones, and the fastest one of each dataflow;
// 2. drops candidates whose results deviate from those of the default plan and, unless may_be_nondeterministic is set,
//    candidates whose results differ from run to run;
// 3. times the remaining candidates on up to 16 scans of the bucket; a candidate beats the default if it is more than
//    1% faster;
// 4. times whole networks that combine the best candidates: with any mix of dataflows, with one dataflow per rulebook,
//    and with one dataflow for all. If the convolutions of one rulebook use different dataflows, the rulebook must be
//    made in several forms, a cost that no convolution's own time shows. The fastest network goes on;
// 5. chooses, for each coordinate level, the algorithm that searches the rulebooks (kernels::MapSearch), by the time of
//    the geometry pass;
// 6. times the plans of steps 4 and 5 against the default. If neither is more than 1% faster, the bucket gets the
//    default.
//
// If there are several buckets, the search finally times all their plans together against the default, since a batch
// makes every form of a rulebook that the plan of any bucket needs. A bucket that is then not more than 1% faster gets
// the default, too.
//
// - Device: batches run through the caller's RunScan, so the search does not know their device, context or memory.
// - Threads: the search calls RunScan and on_progress on the calling thread, and returns when it has ended.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/base/steady_time.h"
#include "engine/compiler/program.h"
#include "engine/tensor/infer_task.h"
#include "engine/tuner/plan_timer.h"
#include "engine/tuner/tuned_plan.h"

namespace voxserve {

struct SearchOptions {
  bool may_be_nondeterministic = false;  // keep candidates whose results differ from run to run in their last bits
  int repeats = 5;                       // runs over which each measurement takes the median; at least 1
  // After this time the search starts no more measurements and decides by the results so far.
  absl::Duration time_limit = absl::InfiniteDuration();
  // The names of the scans in SearchResult::notes, one per scan. A scan without a name is called "scan 3" by its
  // number.
  std::vector<std::string> scan_names;
  // The search calls this function between batches. If it returns false, the search ends with CANCELLED. May be empty.
  std::function<bool(const SearchProgress&)> on_progress;
  std::function<absl::Time()> now = SteadyNow;
};

// The result for one convolution in one bucket. Times are means over the measured scans of the bucket, and are measured
// within the network. They are 0 if the convolution could not be measured.
struct ConvReport {
  std::string node;
  int32_t in_channels = 0;
  int32_t out_channels = 0;
  absl::Duration default_time;
  absl::Duration tuned_time;
  ConvPlan plan;
};

struct SearchResult {
  std::vector<TunedBucket> buckets;            // ascending; together they cover every size
  std::vector<std::vector<ConvReport>> convs;  // [buckets][convolutions]
  absl::Duration search_time;
  int64_t num_runs = 0;            // batches
  std::vector<std::string> notes;  // scans and candidates that were left out, and why
};

// Searches as the top of this header describes. The default plan is the program's default_plans. Errors:
// INVALID_ARGUMENT if there are no scans or none of them can be run; CANCELLED if on_progress returned false;
// UNAVAILABLE (DEVICE_FAILED) if the device failed; INTERNAL or the batch's error if the default plan fails on a scan
// that ran before.
absl::StatusOr<SearchResult> SearchPlan(const Program& program, const RunScan& run, absl::Span<const InferTask> scans,
                                        const SearchOptions& options);

}  // namespace voxserve
