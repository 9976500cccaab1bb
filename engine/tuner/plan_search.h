#pragma once

// Searches for the fastest plan of a program on a device, for the sizes of the given scans. This is Algorithm 5 of
// TorchSparse (Tang et al., MLSys 2022, Appendix B), applied to the whole network at once.
//
// The paper measures each layer by itself and takes the (epsilon, S) with the lowest latency. Here every run is a run
// of the whole network in which each convolution tries one candidate. So each is measured at its place in the network,
// with the caches as the layer before leaves them, and a thousand candidates of fifty convolutions take some hundred
// runs. Scans are divided into buckets by their voxels, at powers of two. Each bucket gets a plan:
//
// 1. Run every candidate (plan_candidates.h) on the bucket's middle scan. Each convolution keeps its best few.
// 2. Drop candidates whose results deviate from the default's, and, unless allowed, those whose results differ from run
//    to run.
// 3. Measure the rest on up to 16 scans. A candidate replaces the default if it is 1% faster.
// 4. Compare whole networks, of mixed dataflows and of a single one. A rulebook whose convolutions mix dataflows must
//    be made in two forms, a cost that no convolution's time shows.
// 5. Choose how each level's maps are searched, by the time of the geometry pass.
// 6. Compare the plan with the default, whole networks in turns. If it is not 1% faster, the bucket keeps the default.
// 7. With several buckets, compare all plans together with the default once more, since a batch makes every form of a
//    rulebook that any of the plans needs.
//
// Batches run through a function, so the search does not know the device, context and memory that they use.

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
  int repeats = 5;                       // repeats of each measurement, at least 1
  // After this time the search measures no more and decides with the results so far.
  absl::Duration time_limit = absl::InfiniteDuration();
  // The names of the scans in notes, one per scan; empty: "scan 3".
  std::vector<std::string> scan_names;
  // The search calls it between batches. If it returns false, the search stops (CANCELLED). May be empty.
  std::function<bool(const SearchProgress&)> on_progress;
  std::function<absl::Time()> now = SteadyNow;
};

// A convolution's result in a bucket: means over the bucket's scans, measured within the network.
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
  std::vector<std::vector<ConvReport>> convs;  // by bucket, by convolution
  absl::Duration search_time;
  int64_t num_runs = 0;            // batches
  std::vector<std::string> notes;  // refused scans and dropped candidates, with reasons
};

// Compares with the program's default_plans. INVALID_ARGUMENT if there are no scans, or none can be run; CANCELLED;
// UNAVAILABLE (DEVICE_FAILED).
absl::StatusOr<SearchResult> SearchPlan(const Program& program, const RunScan& run, absl::Span<const InferTask> scans,
                                        const SearchOptions& options);

}  // namespace voxserve
