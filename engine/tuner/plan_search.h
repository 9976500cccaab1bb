#pragma once

// Searches the fastest plan of a program on a device, for the sizes of the scans that are given: Algorithm 5 of
// TorchSparse (Tang et al., MLSys 2022, Appendix B), for the whole network at once.
//
// The pseudo-code measures each layer by itself and takes the (epsilon, S) of the lowest latency. Here every run is a
// run of the whole network in which all convolutions try a candidate at once, so that each is measured in the network's
// own order, with the caches as the layer before leaves them, and a thousand candidates of fifty convolutions take some
// hundred runs. Scans are parted by their voxels, at powers of two, and each part (bucket) gets a plan:
//
//  1. every candidate (plan_candidates.h) on the bucket's middle scan; each convolution keeps its best few;
//  2. those whose results deviate from the default's are dropped, and those that differ from run to run, unless these
//     are allowed;
//  3. the rest on up to 16 scans; one replaces the default where it is 1% faster;
//  4. a rulebook whose convolutions mix dataflows must be made in both their forms, which no convolution's time shows:
//     whole networks are compared, of mixed dataflows and of one;
//  5. maps: how each level is searched, by the time of the geometry pass;
//  6. the plan against the default, whole networks in turns. Where it is not 1% faster the bucket keeps the default;
//  7. of several buckets: all plans together against the default once more, since a batch makes every form of a
//     rulebook that any of them asks for.
//
// Runs batches through a function, so that it does not know whose device, context and memory they use.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/compiler/program.h"
#include "engine/tensor/infer_task.h"
#include "engine/tuner/plan_timer.h"
#include "engine/tuner/tuned_plan.h"

namespace voxserve {

struct SearchOptions {
  bool may_be_nondeterministic = false;  // keep candidates whose results differ from run to run in their last bits
  int repeats = 5;                       // of each measurement, at least 1
  // Beyond it the search measures no more and concludes from what it has.
  absl::Duration time_limit = absl::InfiniteDuration();
  // What notes call the scans, one each; empty: "scan 3".
  std::vector<std::string> scan_names;
  // Between any two batches. False: stop (CANCELLED). May be empty.
  std::function<bool(const SearchProgress&)> on_progress;
  std::function<absl::Time()> now = absl::Now;
};

// What a convolution won in a bucket: means over the bucket's scans, measured within the network.
struct ConvReport {
  std::string node;
  int32_t in_channels = 0;
  int32_t out_channels = 0;
  absl::Duration default_time;
  absl::Duration tuned_time;
  ConvPlan plan;
};

struct SearchResult {
  std::vector<TunedBucket> buckets;            // ascending; together they hold every size
  std::vector<std::vector<ConvReport>> convs;  // by bucket, by convolution
  absl::Duration search_time;
  int64_t num_runs = 0;            // batches
  std::vector<std::string> notes;  // scans that were refused, candidates that were dropped, why
};

// The program's default_plans are what is compared with. INVALID_ARGUMENT without a scan, or where none can be run;
// CANCELLED; UNAVAILABLE (DEVICE_FAILED).
absl::StatusOr<SearchResult> SearchPlan(const Program& program, const RunScan& run, absl::Span<const InferTask> scans,
                                        const SearchOptions& options);

}  // namespace voxserve
