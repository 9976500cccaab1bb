#pragma once

// Implements voxserve.v1.InferenceService.InferStream: the gRPC side of a StreamSession.
//
// - It is a StreamCall: one message at a time is sent in each direction, and it ends when every accepted frame has been
//   answered. A stream reads no frames while its session has no room. ByteLimits bounds the bytes of clouds, sweeps and
//   answers.
// - An error of the protocol ends it.
// - A frame whose bytes are malformed is answered with an error, and the stream goes on.

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/calls/call.h"
#include "server/calls/service_parts.h"

namespace voxserve {

// Makes the call of a stream. parts outlive it.
std::shared_ptr<Call> MakeInferStream(const ServiceParts* parts, grpc::CallbackServerContext* context);

}  // namespace voxserve
