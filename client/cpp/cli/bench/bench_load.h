#pragma once

// What sends the requests of `voxserve-client bench`. A generator shares its machine with the server: requests are
// encoded once per scan, and their bytes are not copied here.

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/api/channels.h"
#include "client/cpp/cli/bench/bench_recorder.h"
#include "client/cpp/cli/bench/bench_scans.h"

namespace voxserve::client {

// Which requests are measured: those that are due from `since` on, `max_requests` at most (0: any number).
struct BenchSpan {
  absl::Time since;
  int64_t max_requests = 0;
};

class BenchLoad {
 public:
  virtual ~BenchLoad() = default;

  // Once. Sends requests until it is stopped, or has sent all that may be measured.
  virtual void Start(const BenchSpan& span) = 0;
  // Called every few milliseconds from Start to Stop, on one thread.
  virtual void Tick() {}
  // No more requests; returns when all that were sent are taken down.
  virtual void Stop() = 0;
  // Whether all that may be measured are taken down.
  virtual bool is_exhausted() const = 0;
  virtual int64_t num_under_way() const = 0;
};

// Infer calls, scan after scan, over and over. Thread-safe.
class RequestSender {
 public:
  // All outlive it. timeout: from the time at which a request is due.
  RequestSender(Channels* channels, const std::vector<BenchScan>* scans, absl::Duration timeout,
                BenchRecorder* recorder);
  ~RequestSender() { AwaitAll(); }

  // The request of the next scan. `done` is called once, on a thread of gRPC's, after its end was taken down.
  void Send(absl::Time due, std::function<void(const absl::Status&)> done) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes down that the request of the next scan was not sent.
  void Skip(absl::Time due);
  void AwaitAll() ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t num_under_way() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Call;
  absl::Status Finish(const grpc::Status& grpc_status, Call* call);

  const BenchScan& NextScan() { return (*scans_)[next_scan_.fetch_add(1) % scans_->size()]; }

  Channels* const channels_;
  const std::vector<BenchScan>* const scans_;
  const absl::Duration timeout_;
  BenchRecorder* const recorder_;
  std::atomic<uint64_t> next_scan_{0};
  mutable absl::Mutex mutex_;
  int64_t num_under_way_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Callers that send their next request when the last one is answered. After UNAVAILABLE they wait for the next Tick, so
// that they do not spin while there is no server.
class ClosedLoop : public BenchLoad {
 public:
  // The sender outlives it.
  ClosedLoop(int64_t num_callers, RequestSender* sender) : sender_(sender), num_idle_(num_callers) {}
  ~ClosedLoop() override { Stop(); }

  void Start(const BenchSpan& span) override;
  void Tick() override;
  void Stop() override;
  bool is_exhausted() const override { return is_exhausted_ && sender_->num_under_way() == 0; }
  int64_t num_under_way() const override { return sender_->num_under_way(); }

 private:
  void SendNext();

  RequestSender* const sender_;
  BenchSpan span_;
  std::atomic<int64_t> num_idle_;  // callers without a request under way
  std::atomic<int64_t> num_measured_{0};
  std::atomic<bool> is_stopping_{false}, is_exhausted_{false};
};

// Requests that are due when a schedule says so, answered or not.
class ScheduledLoad : public BenchLoad {
 public:
  explicit ScheduledLoad(const ArrivalSchedule& schedule) : schedule_(schedule) {}

  void Start(const BenchSpan& span) override;
  void Stop() override ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_exhausted() const override { return is_exhausted_ && num_under_way() == 0; }

 protected:
  // On the load's own thread; must not block.
  virtual void SendDue(absl::Time due) = 0;
  virtual void AwaitAll() = 0;

 private:
  void Run(const BenchSpan& span) ABSL_LOCKS_EXCLUDED(mutex_);

  ArrivalSchedule schedule_;
  std::atomic<bool> is_exhausted_{false};
  absl::Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Infer calls of a schedule. At most max_under_way at once: the others are taken down as not sent.
class OpenLoop : public ScheduledLoad {
 public:
  OpenLoop(const ArrivalSchedule& schedule, int64_t max_under_way, RequestSender* sender)
      : ScheduledLoad(schedule), max_under_way_(max_under_way), sender_(sender) {}
  ~OpenLoop() override { Stop(); }

  int64_t num_under_way() const override { return sender_->num_under_way(); }

 protected:
  void SendDue(absl::Time due) override;
  void AwaitAll() override { sender_->AwaitAll(); }

 private:
  const int64_t max_under_way_;
  RequestSender* const sender_;
};

}  // namespace voxserve::client
