#pragma once

// Implements inference.GRPCInferenceService.ModelStreamInfer. The call is a StreamCall (server/calls/stream_call.h).
// Its requests run side by side, each with an UnaryRequest, and each is answered when it is ready, in any order.
//
// - Back-pressure: the call reads no further request while 16 of its requests are unanswered or have answers that wait
//   to be sent. gRPC's flow control then stops the client. ByteLimits bounds the bytes of requests and answers.
// - Errors: an error of one request is sent as its answer (error_message), and the stream goes on.
// - End: the call ends with OK after the client has half-closed. It ends with an error if the client has been silent
//   for too long (DEADLINE_EXCEEDED, reason STREAM_IDLE) or the server drains (UNAVAILABLE, reason DRAINING). In each
//   case it first answers every request that it has read. If the client is gone, its requests are cancelled.

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/calls/call.h"
#include "server/calls/call_environment.h"

namespace voxserve {

// Makes the call for one stream. `parts` must outlive the call.
std::shared_ptr<Call> MakeOpenInferenceStream(const CallEnvironment* parts, grpc::CallbackServerContext* context);

}  // namespace voxserve
