#pragma once

// These classes send the requests of `voxserve-client bench`: as unary Infer calls (ClosedLoop, OpenLoop) or, in
// bench_streams.h, as frames of streams. The client may share its machine with the server and must not slow it, so each
// scan is encoded once, and its bytes are never copied here.

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/api/calls_in_flight.h"
#include "client/cpp/api/channels.h"
#include "client/cpp/cli/bench/bench_recorder.h"
#include "client/cpp/cli/bench/bench_scans.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

// Says which requests are measured: the ones that are due from `since` on, at most `max_requests` (0: any number).
struct BenchSpan {
  absl::Time since;
  int64_t max_requests = 0;
};

// A way to send requests. Its owner, bench_run.cc, calls Start, Tick and Stop from one thread; the other methods are
// thread-safe.
class BenchLoad {
 public:
  virtual ~BenchLoad() = default;

  // Begins to send; called once. The load sends until Stop, or until it has sent all requests that may be measured.
  virtual void Start(const BenchSpan& span) = 0;
  // Called every few milliseconds on one thread, from Start to Stop.
  virtual void Tick() {}
  // Sends no more requests. Returns when all sent requests are recorded.
  virtual void Stop() = 0;
  // Returns true if all requests that may be measured are recorded.
  virtual bool is_exhausted() const = 0;
  virtual int64_t num_under_way() const = 0;
};

// Makes Infer calls for one scan after another, again and again. Thread-safe.
class RequestSender {
 public:
  // All arguments must outlive the sender. timeout: counted from the time at which a request is due.
  RequestSender(Channels* channels, const std::vector<BenchScan>* scans, absl::Duration timeout,
                BenchRecorder* recorder);

  // Sends the next scan's request. `done` is called once, on a gRPC thread, after the request's result is recorded.
  void Send(absl::Time due, std::function<void(const absl::Status&)> done);
  // Sends the next scan's request if fewer than max_under_way requests are in flight, else records that it was not sent
  // (kNotSent).
  void SendOrSkip(absl::Time due, int64_t max_under_way);
  void AwaitAll() { calls_.AwaitNone(); }
  int64_t num_under_way() const { return calls_.number(); }

 private:
  // Sends a request with a context of calls_.
  void Start(CallContext* context, absl::Time due, std::function<void(const absl::Status&)> done);
  void Skip(absl::Time due);
  absl::Status Finish(const BenchRequest& request, const grpc::Status& grpc_status, grpc::Channel& channel,
                      const v1::InferResponse& response);

  const BenchScan& NextScan() { return (*scans_)[next_scan_.fetch_add(1) % scans_->size()]; }

  Channels* const channels_;
  const std::vector<BenchScan>* const scans_;
  const absl::Duration timeout_;
  BenchRecorder* const recorder_;
  std::atomic<uint64_t> next_scan_{0};
  CallsInFlight calls_;  // last: it waits for calls that use the others
};

// A closed loop: a fixed number of callers, each of which sends its next request when its last one has ended. After
// UNAVAILABLE a caller waits for the next Tick, so that it does not spin while there is no server.
class ClosedLoop : public BenchLoad {
 public:
  // The sender must outlive the loop.
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
  std::atomic<int64_t> num_idle_;  // callers without a request in flight
  std::atomic<int64_t> num_measured_{0};
  std::atomic<bool> is_stopping_{false}, is_exhausted_{false};
};

// Sends requests at the times of a schedule, whether or not earlier requests have been answered. It has threads of its
// own: each takes the next time of the schedule, waits for it and sends.
class ScheduledLoad : public BenchLoad {
 public:
  ScheduledLoad(const ArrivalSchedule& schedule, int num_threads) : schedule_(schedule), num_threads_(num_threads) {}

  void Start(const BenchSpan& span) override;
  void Stop() override ABSL_LOCKS_EXCLUDED(mutex_);
  bool is_exhausted() const override { return is_exhausted_ && num_under_way() == 0; }

 protected:
  // Sends the request that is due. Runs on the load's own threads, on several at a time if it has several; must not
  // wait for an answer.
  virtual void SendDue(absl::Time due) = 0;
  virtual void AwaitAll() = 0;

 private:
  void Run(const BenchSpan& span) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Time start_;
  std::atomic<bool> is_exhausted_{false};
  absl::Mutex mutex_;
  ArrivalSchedule schedule_ ABSL_GUARDED_BY(mutex_);
  int64_t num_measured_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  const int num_threads_;
  std::atomic<int> num_running_{0};  // threads
  std::vector<std::thread> threads_;
};

// An open loop: Infer calls by a schedule, with at most max_under_way calls in flight (RequestSender::SendOrSkip).
class OpenLoop : public ScheduledLoad {
 public:
  OpenLoop(const ArrivalSchedule& schedule, int64_t max_under_way, RequestSender* sender)
      : ScheduledLoad(schedule, kNumThreads), max_under_way_(max_under_way), sender_(sender) {}
  ~OpenLoop() override { Stop(); }

  int64_t num_under_way() const override { return sender_->num_under_way(); }

 protected:
  void SendDue(absl::Time due) override;
  void AwaitAll() override { sender_->AwaitAll(); }

 private:
  // gRPC writes a request to the socket on the thread that sends it. A scan of 2 MB takes a thread about half a
  // millisecond, so one thread is late from about 2,000 scans a second on.
  static constexpr int kNumThreads = 8;

  const int64_t max_under_way_;
  RequestSender* const sender_;
};

}  // namespace voxserve::client
