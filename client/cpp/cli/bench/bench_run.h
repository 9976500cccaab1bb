#pragma once

// One run of `voxserve-client bench`, apart from what it prints.

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
  double fraction = 0;  // of warm-up and duration
  WindowSummary last_second;
  uint64_t num_failed = 0;
  int64_t num_under_way = 0;
};

struct BenchResult {
  BenchSummary summary;
  bool is_stable = false;         // then the summary is of the last windows alone
  absl::Status first_failure;     // of a request; OK where none failed; superseded frames did not
  size_t num_broken_streams = 0;  // that ended with an error
  absl::Status first_stream_error;
};

// Sends until the duration, the number of requests or the stability that the options ask for; on_progress (may be
// empty) is called a few times a second, on this thread. Fails only where streams cannot be opened: what requests
// meet is the result.
absl::StatusOr<BenchResult> RunBench(const BenchOptions& options, const std::shared_ptr<Channels>& channels,
                                     const std::vector<BenchScan>& scans,
                                     const std::function<void(const BenchProgress&)>& on_progress);

// OK where a request was answered OK; else why none was.
absl::Status VerdictOn(const BenchResult& result);

}  // namespace voxserve::client
