#include "client/cpp/cli/bench/bench_run.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/time/clock.h"
#include "client/cpp/cli/bench/bench_load.h"
#include "client/cpp/cli/bench/bench_streams.h"

namespace voxserve::client {
namespace {

constexpr int64_t kMaxUnderWay = 4096;  // in an open loop
constexpr absl::Duration kTick = absl::Milliseconds(5);
constexpr absl::Duration kProgressInterval = absl::Milliseconds(250);

ArrivalSchedule ScheduleOf(const BenchOptions& options) {
  return options.is_poisson() ? ArrivalSchedule::Poisson(options.rate, options.poisson_seed())
                              : ArrivalSchedule::Constant(options.rate);
}

// Runs a load for as long as the options say.
class Run {
 public:
  Run(const BenchOptions& options, BenchLoad* load, const BenchRecorder* recorder,
      const std::function<void(const BenchProgress&)>& on_progress)
      : options_(options), load_(load), recorder_(recorder), on_progress_(on_progress) {}

  void Execute() {
    start_ = absl::Now();
    since_ = start_ + options_.warm_up;
    window_end_ = since_ + options_.window;
    const absl::Time end = since_ + options_.duration;
    // A load of streams counts the parts that it sends.
    const int64_t max_requests =
        std::min(options_.max_requests, std::numeric_limits<int64_t>::max() / options_.num_parts);
    load_->Start({since_, max_requests * options_.num_parts});
    absl::Time now = absl::Now();
    for (; now < end && !load_->is_exhausted() && !is_stable_; now = absl::Now()) {
      load_->Tick();
      ShowProgress(now);
      CloseWindows(now);
      absl::SleepFor(std::min(kTick, end - now));
    }
    load_->Stop();
    until_ = now;
    if (load_->is_exhausted()) until_ = std::max(since_, recorder_->last_ended()) + absl::Nanoseconds(1);
    if (is_stable_) {
      until_ = window_end_ - options_.window;
      since_ = until_ - options_.window * static_cast<int64_t>(kStableWindows);
    }
  }

  absl::Time since() const { return since_; }
  absl::Time until() const { return until_; }
  bool is_stable() const { return is_stable_; }

 private:
  void CloseWindows(absl::Time now) {
    if (options_.stable_percent <= 0) return;
    while (now >= window_end_ && !is_stable_) {
      windows_.push_back(recorder_->Window(window_end_ - options_.window, window_end_));
      window_end_ += options_.window;
      is_stable_ = IsStable(windows_, options_.stable_percent);
    }
  }

  void ShowProgress(absl::Time now) {
    if (!on_progress_ || now - last_progress_ < kProgressInterval) return;
    last_progress_ = now;
    on_progress_({.is_warming_up = now < since_,
                  .fraction = absl::FDivDuration(now - start_, options_.warm_up + options_.duration),
                  .last_second = recorder_->Window(now - absl::Seconds(1), now),
                  .num_failed = recorder_->num_failed(),
                  .num_under_way = load_->num_under_way()});
  }

  const BenchOptions& options_;
  BenchLoad* const load_;
  const BenchRecorder* const recorder_;
  const std::function<void(const BenchProgress&)>& on_progress_;
  absl::Time start_, since_, until_, window_end_;
  absl::Time last_progress_ = absl::InfinitePast();
  std::vector<WindowSummary> windows_;
  bool is_stable_ = false;
};

}  // namespace

absl::StatusOr<BenchResult> RunBench(const BenchOptions& options, const std::shared_ptr<Channels>& channels,
                                     const std::vector<BenchScan>& scans,
                                     const std::function<void(const BenchProgress&)>& on_progress) {
  BenchRecorder recorder;
  RequestSender sender(channels.get(), &scans, options.connection.timeout, &recorder);
  std::unique_ptr<BenchLoad> load;
  StreamLoad* streams = nullptr;  // load, if it consists of streams
  switch (options.mode()) {
    case LoadMode::kClosedLoop:
      load = std::make_unique<ClosedLoop>(options.num_callers(), &sender);
      break;
    case LoadMode::kOpenLoop:
      load = std::make_unique<OpenLoop>(ScheduleOf(options), kMaxUnderWay, &sender);
      break;
    case LoadMode::kStreams: {
      absl::StatusOr<std::unique_ptr<StreamLoad>> opened = StreamLoad::Open(options, channels, &scans, &recorder);
      if (!opened.ok()) return opened.status();
      streams = opened->get();
      load = *std::move(opened);
      break;
    }
  }
  Run run(options, load.get(), &recorder, on_progress);
  run.Execute();
  BenchResult result;
  result.summary = recorder.Summarise(run.since(), run.until(), static_cast<size_t>(options.num_streams));
  result.is_stable = run.is_stable();
  result.first_failure = recorder.first_failure();
  if (streams != nullptr) {
    result.num_broken_streams = streams->num_broken();
    result.first_stream_error = streams->first_error();
  }
  return result;
}

absl::Status VerdictOn(const BenchResult& result) {
  if (result.summary.ok.count > 0) return absl::OkStatus();
  if (!result.first_failure.ok()) return result.first_failure;
  if (result.summary.num_superseded > 0) return absl::AbortedError("every frame was superseded by a newer one");
  return absl::DeadlineExceededError("no request was due in the time measured");
}

}  // namespace voxserve::client
