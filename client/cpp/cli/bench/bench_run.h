#pragma once

// RunBench makes one run of `voxserve-client bench`, without printing.

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/cli/bench/bench_options.h"
#include "client/cpp/cli/bench/bench_recorder.h"
#include "client/cpp/cli/bench/bench_scans.h"

namespace voxserve::client {

struct BenchProgress {
  bool is_warming_up = false;
  double fraction = 0;  // part of warm-up and duration that has passed
  WindowSummary last_second;
  uint64_t num_failed = 0;
  int64_t num_under_way = 0;
};

struct BenchResult {
  BenchSummary summary;
  bool is_stable = false;         // if true, the summary covers only the last kStableWindows windows
  absl::Status first_failure;     // OK if no request failed; superseded frames do not count
  size_t num_broken_streams = 0;  // streams that ended with an error
  absl::Status first_stream_error;
};

// Sends until the options' duration, number of requests or stability (IsStable) is reached. Calls on_progress (may be
// empty) a few times a second, on the caller's thread. Returns an error only if streams cannot be opened; errors of
// requests are part of the result.
absl::StatusOr<BenchResult> RunBench(const BenchOptions& options, const std::shared_ptr<Channels>& channels,
                                     const std::vector<BenchScan>& scans,
                                     const std::function<void(const BenchProgress&)>& on_progress);

// Returns OK if at least one request was answered with OK; otherwise the error that explains why none was.
absl::Status VerdictOn(const BenchResult& result);

}  // namespace voxserve::client
