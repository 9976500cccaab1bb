#include "client/cpp/cli/bench/bench_streams.h"

#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/clock.h"
#include "client/cpp/api/frame_encoding.h"
#include "client/cpp/api/response.h"
#include "client/cpp/api/stream_call.h"

namespace voxserve::client {
namespace {

// The time to wait for answers after frame_timeout, when the server gives up on a frame.
constexpr absl::Duration kGrace = absl::Seconds(1);

}  // namespace

// One stream and its frames.
class StreamLoad::Vehicle {
 public:
  Vehicle(size_t number, const std::vector<BenchScan>* scans, BenchRecorder* recorder)
      : number_(number), scans_(scans), recorder_(recorder), next_scan_(number % scans->size()) {}

  absl::Status Open(const StreamOptions& options, const std::shared_ptr<Channels>& channels) {
    absl::StatusOr<std::unique_ptr<StreamCall>> call =
        StreamCall::Open(channels, options,
                         {.on_result = [this](StreamCall::Outcome outcome) { TakeDown(std::move(outcome)); },
                          .on_end = [this](absl::Status status) { TakeEnd(std::move(status)); }});
    if (!call.ok()) return call.status();
    call_ = *std::move(call);
    return absl::OkStatus();
  }

  // Sends the next frame, or its next part.
  void Send(absl::Time due) ABSL_LOCKS_EXCLUDED(mutex_) {
    const BenchScan& scan = (*scans_)[next_scan_];
    const size_t part = next_part_;
    const bool is_last = part + 1 == scan.clouds.size();
    next_part_ = is_last ? 0 : part + 1;
    if (part == 0) {
      reset_is_due_ = reset_is_due_ || (scan.pose && next_scan_ == 0);
      ++frame_id_;
    }
    if (is_last) next_scan_ = (next_scan_ + 1) % scans_->size();
    const BenchRequest request = {due, absl::Now(), scan.num_points, number_};
    {
      absl::MutexLock lock(&mutex_);
      if (part == 0) {
        under_way_[frame_id_] = request;
      } else {
        // Latency counts from the last part. The frame is gone if it failed before.
        const auto found = under_way_.find(frame_id_);
        if (found == under_way_.end()) return;
        found->second = request;
      }
    }
    const BenchCloud& cloud = scan.clouds[part];
    StreamCall::Frame frame = {frame_id_, cloud.num_points, {.pose = scan.pose, .reset_sweeps = reset_is_due_}, {}};
    if (scan.clouds.size() > 1) {
      frame.form = FrameForm::kInParts;
      frame.index = static_cast<uint32_t>(part);
      const std::optional<absl::Time> stamp = is_last ? std::make_optional(due) : std::nullopt;
      frame.parts = {EncodePartHeader(frame_id_, frame.index, is_last, frame.options, stamp), cloud.bytes};
    } else {
      frame.parts = {EncodeFrameHeader(frame_id_, frame.options, due), cloud.bytes};
    }
    const absl::Status status = call_->Send(std::move(frame));
    if (status.ok()) {
      if (is_last) reset_is_due_ = false;
      return;
    }
    if (part > 0) return;  // the call has ended, and ends the frame
    {
      absl::MutexLock lock(&mutex_);
      under_way_.erase(frame_id_);
    }
    recorder_->AddFailure(request, absl::Now(), status);
  }

  // Completes the frame that has begun, and sends no more.
  void CloseSends() {
    while (next_part_ != 0) Send(absl::Now());
    call_->CloseSends();
  }
  void Cancel() { call_->Cancel(); }

  void AwaitEnd(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithDeadline(absl::Condition(&has_ended_), deadline);
  }

  size_t num_under_way() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return under_way_.size();
  }

  // Returns why the stream ended; OK before.
  absl::Status end() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return end_;
  }

 private:
  void TakeDown(StreamCall::Outcome outcome) ABSL_LOCKS_EXCLUDED(mutex_) {
    const absl::Time ended = absl::Now();
    BenchRequest request;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = under_way_.find(outcome.frame_id);
      request = found->second;
      under_way_.erase(found);
    }
    absl::Status status = outcome.response.status();
    if (status.ok()) status = CheckResponse(*outcome.response, outcome.asked);
    if (!status.ok()) {
      recorder_->AddFailure(request, ended, status);
      return;
    }
    const v1::InferResponse& response = *outcome.response;
    recorder_->AddAnswer(request, ended, NameAnswerer(response.model(), response.version(), response.device()),
                         StagesOf(response));
  }

  void TakeEnd(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    has_ended_ = true;
    end_ = std::move(status);
  }

  const size_t number_;
  const std::vector<BenchScan>* const scans_;
  BenchRecorder* const recorder_;
  size_t next_scan_;
  size_t next_part_ = 0;
  uint64_t frame_id_ = 0;      // of the last frame that was begun
  bool reset_is_due_ = false;  // the next frame that is sent resets the sweeps
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, BenchRequest> under_way_ ABSL_GUARDED_BY(mutex_);  // by frame_id
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StreamCall> call_;  // declared last, so its callbacks end before the other members are destroyed
};

absl::StatusOr<std::unique_ptr<StreamLoad>> StreamLoad::Open(const BenchOptions& options,
                                                             const std::shared_ptr<Channels>& channels,
                                                             const std::vector<BenchScan>* scans,
                                                             BenchRecorder* recorder) {
  const double sends_per_second =
      options.frame_rate * static_cast<double>(options.num_streams) * static_cast<double>(options.num_parts);
  std::unique_ptr<StreamLoad> load(
      new StreamLoad(ArrivalSchedule::Constant(sends_per_second), options.connection.timeout));
  for (int64_t i = 0; i < options.num_streams; ++i) {
    auto vehicle = std::make_unique<Vehicle>(static_cast<size_t>(i), scans, recorder);
    if (absl::Status status = vehicle->Open(options.stream_options(), channels); !status.ok()) return status;
    load->vehicles_.push_back(std::move(vehicle));
  }
  return load;
}

StreamLoad::StreamLoad(const ArrivalSchedule& schedule, absl::Duration timeout)
    : ScheduledLoad(schedule, /*num_threads=*/1), timeout_(timeout) {}

StreamLoad::~StreamLoad() { Stop(); }

void StreamLoad::SendDue(absl::Time due) { vehicles_[num_sent_++ % vehicles_.size()]->Send(due); }

void StreamLoad::AwaitAll() {
  for (const std::unique_ptr<Vehicle>& vehicle : vehicles_) vehicle->CloseSends();
  const absl::Time deadline = absl::Now() + timeout_ + kGrace;
  for (const std::unique_ptr<Vehicle>& vehicle : vehicles_) vehicle->AwaitEnd(deadline);
  for (const std::unique_ptr<Vehicle>& vehicle : vehicles_) vehicle->Cancel();
  for (const std::unique_ptr<Vehicle>& vehicle : vehicles_) vehicle->AwaitEnd(absl::InfiniteFuture());
}

int64_t StreamLoad::num_under_way() const {
  int64_t count = 0;
  for (const std::unique_ptr<Vehicle>& vehicle : vehicles_) count += static_cast<int64_t>(vehicle->num_under_way());
  return count;
}

size_t StreamLoad::num_broken() const {
  size_t count = 0;
  for (const std::unique_ptr<Vehicle>& vehicle : vehicles_) count += !vehicle->end().ok();
  return count;
}

absl::Status StreamLoad::first_error() const {
  for (const std::unique_ptr<Vehicle>& vehicle : vehicles_) {
    if (!vehicle->end().ok()) return vehicle->end();
  }
  return absl::OkStatus();
}

}  // namespace voxserve::client
