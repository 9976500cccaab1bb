#pragma once

// BenchRecorder records the result of every request of a load, and summarises the results. Thread-safe.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/api/segmentation.h"
#include "client/cpp/cli/bench/bench_statistics.h"

namespace voxserve::client {

// An open loop's request that was not sent, because too many requests were in flight, fails with RESOURCE_EXHAUSTED and
// this reason.
inline constexpr absl::string_view kNotSent = "NOT_SENT";

struct BenchRequest {
  absl::Time due;   // latency is counted from here
  absl::Time sent;  // later than `due` if the sender fell behind
  uint64_t num_points = 0;
  size_t stream = 0;
};

// The requests that ended with the same error.
struct BenchOutcome {
  std::string code, reason;     // "" if there is none
  bool is_from_server = false;  // otherwise the error is the client's own or gRPC's
  uint64_t count = 0;
  absl::Duration p50, p99;  // time from `due` to the answer
};

struct StreamSummary {
  uint64_t num_frames = 0;  // frames that were due
  uint64_t num_answered = 0, num_superseded = 0, num_failed = 0;
  absl::Duration age_p50, age_p99;  // ages of answered frames when their answer arrived
};

struct BenchSummary {
  absl::Duration measured;    // length of the measured time, [since, until)
  uint64_t num_requests = 0;  // requests that were due in the measured time
  uint64_t num_not_sent = 0;  // the part of num_requests that was not sent (kNotSent)
  // The part of num_requests that are frames of streams which a newer frame superseded. The policy "latest" works so;
  // they are no failures.
  uint64_t num_superseded = 0;
  // Rates of the answers with OK that came in the measured time, whenever their requests were due.
  double scans_per_second = 0, points_per_second = 0;
  std::vector<uint64_t> ok_per_second;  // answers in each whole second of the measured time
  // Latencies of the requests that were due in the measured time, whenever they were answered.
  LatencySummary ok;
  LatencySummary refused;              // requests that ended with an error of the server
  LatencySummary behind;               // from `due` to `sent`: the delay that the client itself adds
  std::vector<BenchOutcome> failures;  // most frequent first; without superseded frames
  std::vector<std::pair<std::string, absl::Duration>> stages;  // means over OK answers, in the server's order
  std::map<std::string, uint64_t> answered_by;                 // number of OK answers by NameAnswerer
  std::vector<StreamSummary> streams;                          // by stream number; empty without streams
};

// Returns a name such as "minkunet version 3 on cuda:0".
std::string NameAnswerer(absl::string_view model, int64_t version, absl::string_view device);

class BenchRecorder {
 public:
  void AddAnswer(const BenchRequest& request, absl::Time ended, absl::string_view answered_by,
                 const std::vector<Stage>& stages) ABSL_LOCKS_EXCLUDED(mutex_);
  void AddFailure(const BenchRequest& request, absl::Time ended, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Summarises the requests that ended in [since, until).
  WindowSummary Window(absl::Time since, absl::Time until) const ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t num_ok() const ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t num_failed() const ABSL_LOCKS_EXCLUDED(mutex_);         // without superseded frames
  absl::Time last_ended() const ABSL_LOCKS_EXCLUDED(mutex_);       // InfinitePast if none has ended
  absl::Status first_failure() const ABSL_LOCKS_EXCLUDED(mutex_);  // OK if none has failed

  // Summarises the time [since, until). num_streams: the number of streams, for BenchSummary::streams.
  BenchSummary Summarise(absl::Time since, absl::Time until, size_t num_streams) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Record {
    BenchRequest request;
    absl::Time ended;
    size_t outcome = 0;         // index into outcomes_; 0 is OK
    size_t answered_by = 0;     // index into names_
    std::vector<float> stages;  // in microseconds, in the order of stage_names_
  };
  struct Outcome {
    std::string code, reason;
    bool is_from_server = false;
  };

  void Add(Record record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static size_t IndexOf(absl::string_view name, std::vector<std::string>* names);

  mutable absl::Mutex mutex_;
  std::vector<Record> records_ ABSL_GUARDED_BY(mutex_);  // almost in the order of `ended`
  std::vector<Outcome> outcomes_ ABSL_GUARDED_BY(mutex_) = {{}};
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);        // results of NameAnswerer
  std::vector<std::string> stage_names_ ABSL_GUARDED_BY(mutex_);  // in the order of the first answers
  uint64_t num_ok_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t num_superseded_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_ended_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Status first_failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve::client
