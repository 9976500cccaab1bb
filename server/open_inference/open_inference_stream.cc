#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "open_inference.pb.h"
#include "server/calls/stream_call.h"
#include "server/calls/unary_request.h"
#include "server/codec/grpc_status.h"
#include "server/codec/message_parser.h"
#include "server/open_inference/open_inference_format.h"
#include "server/open_inference/open_inference_service.h"

namespace voxserve {
namespace {

// While this many requests of a stream are unanswered or their answers unsent, the stream reads no further request.
constexpr size_t kMaxOpenRequests = 16;

// Returns the response that tells the client of an error. id: the id of the request that failed.
absl::StatusOr<InferAnswer> AnswerOf(const absl::Status& error, const std::string& id) {
  inference::ModelStreamInferResponse response;
  response.set_error_message(absl::StrCat(absl::StatusCodeToString(error.code()), ": ", ToRpcStatus(error).message(),
                                          " (", ReasonOf(error), ")"));
  response.mutable_infer_response()->set_id(id);
  InferAnswer answer;
  ASSIGN_OR_RETURN(answer.message, Serialize(response));
  return answer;
}

// One call of ModelStreamInfer.
class OpenInferenceStream final : public StreamCall {
 public:
  using StreamCall::StreamCall;

  void Drain() override {
    ShortenAnswerTimer();
    {
      absl::MutexLock lock(&mutex_);
      draining_ = true;
    }
    Fail(DrainingError());
  }

 private:
  std::shared_ptr<OpenInferenceStream> self() {
    return std::static_pointer_cast<OpenInferenceStream>(shared_from_this());
  }

  // Starts the request that was read. One that comes during a drain is answered with the error that ends the stream.
  void OnMessage(grpc::ByteBuffer* message) override {
    const auto request =
        std::make_shared<UnaryRequest>(&environment(), std::make_unique<OpenInferenceFormat>(/*is_streamed=*/true));
    UnaryRequest::Done done = [self = self(), request](absl::StatusOr<InferAnswer> answer) {
      self->OnAnswer(request, std::move(answer));
    };
    UnaryRequest::RequestOrigin origin = {
        .peer = source(), .caller = caller(), .deadline = deadline(), .trace = trace()};
    std::optional<absl::Status> refused;
    {
      absl::MutexLock lock(&mutex_);
      if (is_finished_) return;
      refused = end_;
      requests_.insert(request);
      BeginRequest(/*has_points=*/true);
    }
    if (refused.has_value()) {
      done(*refused);
    } else {
      request->Start(std::move(origin), *message, std::move(done));
    }
  }

  void OnAnswer(const std::shared_ptr<UnaryRequest>& request, absl::StatusOr<InferAnswer> answer) {
    const bool is_made = Guard([&] {
      const absl::Status status = caller().Narrowed(answer.status());
      if (status.ok()) return;
      if (ReasonOf(status) == error_reason::kMalformed)
        environment().metrics->OnCallEndedEarly(error_reason::kMalformed);
      answer = AnswerOf(status, request->request_id());
    });
    if (is_made && answer.ok()) {
      KeepAnswer({.message = std::move(answer->message), .held = std::move(answer->held)});
    } else {
      EndOutOfMemory();
    }
    {
      absl::MutexLock lock(&mutex_);
      requests_.erase(request);
    }
    EndRequest();
  }

  void CancelRequests(const absl::Status& why) override {
    std::vector<std::shared_ptr<UnaryRequest>> requests;
    {
      absl::MutexLock lock(&mutex_);
      requests.assign(requests_.begin(), requests_.end());
    }
    for (const std::shared_ptr<UnaryRequest>& request : requests) request->Abandon(why);
  }

  bool HasRoom() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return requests_.size() + unsent_.size() < kMaxOpenRequests;
  }

  absl::Time SilenceEnds() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return last_sign_ + environment().times.silence;
  }

  absl::Status SilenceError() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return WithReason(absl::DeadlineExceededError(
                          absl::StrCat("no request came within ", absl::FormatDuration(environment().times.silence))),
                      error_reason::kStreamIdle);
  }

  std::set<std::shared_ptr<UnaryRequest>> requests_ ABSL_GUARDED_BY(mutex_);  // requests that are not answered
};

}  // namespace

std::shared_ptr<Call> MakeOpenInferenceStream(const CallEnvironment* environment,
                                              grpc::CallbackServerContext* context) {
  return std::make_shared<OpenInferenceStream>(environment, context);
}

}  // namespace voxserve
