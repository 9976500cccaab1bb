#include "client/cpp/cli/bench/bench_load.h"

#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/api/error.h"
#include "client/cpp/api/response.h"
#include "voxserve/v1/inference.grpc.pb.h"

namespace voxserve::client {
namespace {

constexpr char kMethod[] = "/voxserve.v1.InferenceService/Infer";

}  // namespace

RequestSender::RequestSender(Channels* channels, const std::vector<BenchScan>* scans, absl::Duration timeout,
                             BenchRecorder* recorder)
    : channels_(channels), scans_(scans), timeout_(timeout), recorder_(recorder) {}

void RequestSender::Send(absl::Time due, std::function<void(const absl::Status&)> done) {
  Start(calls_.Begin(*channels_, absl::InfiniteDuration()), due, std::move(done));
}

void RequestSender::SendOrSkip(absl::Time due, int64_t max_under_way) {
  CallContext* const context = calls_.Begin(*channels_, absl::InfiniteDuration(), max_under_way);
  if (context == nullptr) return Skip(due);
  Start(context, due, [](const absl::Status&) {});
}

void RequestSender::Start(CallContext* context, absl::Time due, std::function<void(const absl::Status&)> done) {
  const BenchScan& scan = NextScan();
  const BenchRequest request = {due, absl::Now(), scan.num_points, 0};
  const std::shared_ptr<grpc::Channel>& channel = channels_->all()[channels_->NextIndex()];
  const auto response = std::make_shared<v1::InferResponse>();
  context->set_deadline(absl::ToChronoTime(due + timeout_));
  grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::InferResponse> stub(channel);
  stub.UnaryCall(context, kMethod, grpc::StubOptions(), &scan.request, response.get(),
                 [this, context, request, &channel, response, done = std::move(done)](const grpc::Status& status) {
                   done(Finish(request, status, *channel, *response));
                   calls_.End(context);
                 });
}

absl::Status RequestSender::Finish(const BenchRequest& request, const grpc::Status& grpc_status, grpc::Channel& channel,
                                   const v1::InferResponse& response) {
  const absl::Time ended = absl::Now();
  absl::Status status = channels_->Explain(grpc_status, channel, timeout_);
  if (status.ok()) status = CheckResponse(response, {.num_points = request.num_points});
  if (!status.ok()) {
    recorder_->AddFailure(request, ended, status);
    return status;
  }
  recorder_->AddAnswer(request, ended, NameAnswerer(response.model(), response.version(), response.device()),
                       StagesOf(response));
  return status;
}

void RequestSender::Skip(absl::Time due) {
  recorder_->AddFailure({due, due, NextScan().num_points, 0}, due,
                        WithReason(absl::ResourceExhaustedError("too many requests are in flight"), kNotSent));
}

void ClosedLoop::Start(const BenchSpan& span) {
  span_ = span;
  Tick();
}

void ClosedLoop::Tick() {
  for (int64_t idle = num_idle_.exchange(0); idle > 0; --idle) SendNext();
}

// If nothing is sent here, nothing needs to be sent later: is_stopping_ and is_exhausted_ never become false again.
void ClosedLoop::SendNext() {
  const absl::Time due = absl::Now();
  if (is_stopping_ || is_exhausted_) return;
  if (span_.max_requests > 0 && due >= span_.since && num_measured_.fetch_add(1) >= span_.max_requests) {
    is_exhausted_ = true;
    return;
  }
  sender_->Send(due, [this](const absl::Status& status) {
    if (absl::IsUnavailable(status)) {
      num_idle_.fetch_add(1);
    } else {
      SendNext();
    }
  });
}

void ClosedLoop::Stop() {
  is_stopping_ = true;
  sender_->AwaitAll();
}

void ScheduledLoad::Start(const BenchSpan& span) {
  start_ = absl::Now();
  num_running_ = num_threads_;
  for (int i = 0; i < num_threads_; ++i) threads_.emplace_back([this, span] { Run(span); });
}

void ScheduledLoad::Run(const BenchSpan& span) {
  while (true) {
    absl::Time due;
    {
      absl::MutexLock lock(&mutex_);
      due = start_ + schedule_.Next();
      if (span.max_requests > 0 && due >= span.since && num_measured_++ >= span.max_requests) break;
      mutex_.AwaitWithDeadline(absl::Condition(&is_stopping_), due);  // other threads take times meanwhile
      if (is_stopping_) return;
    }
    SendDue(due);
  }
  if (--num_running_ == 0) is_exhausted_ = true;
}

void ScheduledLoad::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  AwaitAll();
}

void OpenLoop::SendDue(absl::Time due) { sender_->SendOrSkip(due, max_under_way_); }

}  // namespace voxserve::client
