#pragma once

// Implements inference.GRPCInferenceService.ModelStreamInfer: requests that run side by side, each an InferRun.
//
// - A stream has at most 16 requests that are not answered and read; with more it reads none, so gRPC's flow control
//   holds the client. ByteLimits bounds their bytes.
// - It ends when all that was read is answered: with OK after the client has half-closed, with an error if the client
//   fell silent (STREAM_IDLE) or the server drains. If the client is gone, its requests are cancelled.

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/calls/call.h"
#include "server/calls/service_parts.h"

namespace voxserve {

// Makes the call of a stream. parts outlive it.
std::shared_ptr<Call> MakeOpenInferenceStream(const ServiceParts* parts, grpc::CallbackServerContext* context);

}  // namespace voxserve
