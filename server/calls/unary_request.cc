#include "server/calls/unary_request.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "engine/serving/admission/drop_reason.h"
#include "server/codec/codec.h"

namespace voxserve {

template <typename Run>
auto UnaryRequest::Guarded(const Run& run) -> decltype(run()) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    environment_.metrics->OnCallEndedEarly(error_reason::kOutOfMemory);
    return OutOfMemoryError();
  }
}

void UnaryRequest::Start(RequestOrigin origin, const grpc::ByteBuffer& bytes, Done done) {
  origin_ = std::move(origin);
  {
    absl::MutexLock lock(&mutex_);
    done_ = std::move(done);
  }
  const absl::Status status = Guarded([&] {
    absl::Status submitted = Submit(bytes);
    if (submitted.ok()) return submitted;
    if (!telemetry_.has_value()) SetTelemetry({});
    telemetry_->Refuse(submitted);
    return submitted;
  });
  if (!status.ok()) Finish(status);
}

absl::Status UnaryRequest::Submit(const grpc::ByteBuffer& bytes) {
  const absl::Time arrived = SteadyNow();
  codec_.emplace(&environment_, origin_.caller.client);
  RETURN_IF_ERROR(HoldRequest(static_cast<int64_t>(bytes.Length())));
  v1::InferRequest request;
  HostBuffer data;
  const auto allocate = [this](int64_t size) { return environment_.engine->AllocateCloud(size, BufferLife::kRequest); };
  RETURN_IF_ERROR(format_->Parse(bytes, allocate, &request, &data));
  const auto num_held = [&] {
    return static_cast<int64_t>(request.SpaceUsedLong()) + format_->HeldSpace() + data.size();
  };
  RETURN_IF_ERROR(HoldRequest(num_held()));
  SetTelemetry(request);
  RETURN_IF_ERROR(CheckMayInfer(origin_.caller, *environment_.engine, request.model(), request.version(),
                                PriorityOf(request.priority())));
  RETURN_IF_ERROR(format_->Complete(*environment_.engine, &request));
  RETURN_IF_ERROR(format_->Fetch(environment_, origin_.caller.client, allocate, &data));
  RETURN_IF_ERROR(HoldRequest(num_held()));
  if (!request.has_cloud()) {
    return WithReason(absl::InvalidArgumentError("the request has no cloud"), error_reason::kMissingCloud);
  }
  telemetry_->SetCloud(request.cloud());
  ASSIGN_OR_RETURN(PointCloud cloud, codec_->Decode(request.mutable_cloud(), std::move(data)));
  ASSIGN_OR_RETURN(InferTask task, DecodeRequest(request, std::move(cloud)));
  task.client = origin_.caller.client;
  task.client_share = origin_.caller.share();
  task.deadline = std::min(origin_.deadline, arrived + format_->timeout());
  task.done = [self = shared_from_this()](absl::StatusOr<InferResult> result) {
    self->Finish(self->Guarded([&] { return self->AnswerOf(std::move(result)); }));
  };
  {
    absl::MutexLock lock(&mutex_);
    is_submitting_ = true;
  }
  const uint64_t ticket = environment_.engine->Submit(std::move(task));
  bool is_abandoned = false;
  {
    absl::MutexLock lock(&mutex_);
    is_submitting_ = false;
    ticket_ = ticket;
    is_abandoned = abandoned_.has_value();
  }
  if (is_abandoned) environment_.engine->Cancel(ticket);
  return absl::OkStatus();
}

absl::Status UnaryRequest::HoldRequest(int64_t bytes) {
  absl::StatusOr<HeldBytes> held =
      environment_.bytes->Hold(ByteKind::kRequest, origin_.caller.client, bytes, request_bytes_.bytes());
  if (held.ok()) {
    request_bytes_ = *std::move(held);
  } else if (const auto reason = DropReasonOf(held.status())) {
    environment_.metrics->OnDropped("", *reason);
  }
  return held.status();
}

void UnaryRequest::SetTelemetry(const v1::InferRequest& request) {
  telemetry_.emplace(RequestTelemetry::Names{.model = request.model(),
                                             .version = request.version(),
                                             .request_id = request.request_id(),
                                             .peer = origin_.peer,
                                             .trace = origin_.trace},
                     environment_);
}

void UnaryRequest::Abandon(const absl::Status& why) {
  std::optional<uint64_t> ticket;
  {
    absl::MutexLock lock(&mutex_);
    abandoned_ = why;
    ticket = ticket_;
  }
  if (ticket.has_value()) environment_.engine->Cancel(*ticket);
}

absl::StatusOr<InferAnswer> UnaryRequest::AnswerOf(absl::StatusOr<InferResult> result) {
  bool is_refusal = false;
  std::optional<absl::Status> abandoned;
  {
    absl::MutexLock lock(&mutex_);
    // An error during Submit means that the engine refused the task.
    is_refusal = is_submitting_ && !result.ok();
    abandoned = abandoned_;
  }
  request_bytes_.Release();
  absl::Status status = result.status();
  if (abandoned.has_value() && (result.ok() || absl::IsCancelled(status))) status = *abandoned;
  if (!status.ok()) {
    is_refusal ? telemetry_->Refuse(status) : telemetry_->Fail(status);
    return status;
  }
  absl::StatusOr<EncodedAnswer> encoded = format_->Encode(&*result, &*codec_);
  if (!encoded.ok()) {
    telemetry_->Fail(encoded.status());
    return encoded.status();
  }
  telemetry_->Record(*result, *codec_);
  *result = InferResult();  // its memory is free before the message is written
  ASSIGN_OR_RETURN(grpc::ByteBuffer message, Serialize(*encoded->message));
  return InferAnswer{.message = std::move(message), .held = std::move(encoded->held)};
}

void UnaryRequest::Finish(absl::StatusOr<InferAnswer> answer) {
  Done done;
  {
    absl::MutexLock lock(&mutex_);
    done = std::exchange(done_, nullptr);
  }
  if (done) done(std::move(answer));
}

absl::Status CheckMayInfer(const Caller& caller, const Engine& engine, const std::string& model, int64_t version,
                           int priority) {
  RETURN_IF_ERROR(caller.CheckModel(model));
  if (priority >= caller.highest_priority()) return absl::OkStatus();
  // If the model or version does not exist, returns that error here, before the engine would.
  ASSIGN_OR_RETURN(const ModelVersionInfo info, engine.GetModel(model, version));
  return caller.CheckPriority(priority, info.priority_levels);
}

}  // namespace voxserve
