#pragma once

// InferCall is a call with one inference request and one answer (Infer and ModelInfer). A UnaryRequest makes the
// answer. If the client is gone or the deadline has passed, the call cancels its task in the engine's queue.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "server/calls/call.h"
#include "server/calls/unary_request.h"

namespace voxserve {

class InferCall final : public RequestCall {
 public:
  InferCall(const CallEnvironment* environment, grpc::CallbackServerContext* context,
            std::unique_ptr<InferFormat> format)
      : RequestCall(environment, context, CallKind::kRequest),
        request_(std::make_shared<UnaryRequest>(environment, std::move(format))) {}

 private:
  void OnRequest(const grpc::ByteBuffer& bytes) override;
  void OnAbandoned(const absl::Status& why) override { request_->Abandon(why); }

  const std::shared_ptr<UnaryRequest> request_;
};

}  // namespace voxserve
