#pragma once

// Implements voxserve.v1.InferenceService.InferStream: the gRPC side of a StreamSession.
//
// - One message at a time is sent in each direction. A stream reads no more frames while its client leaves too many
//   answers unread, or while its session has no room. ByteLimits bounds the bytes of clouds, sweeps and answers.
// - A stream ends when every accepted frame has been answered: with OK after the client has half-closed, with an error
//   if the client broke the protocol or fell silent, or the server drains. If the client is gone, its frames are
//   cancelled.
// - A frame whose bytes are malformed is answered with an error, and the stream goes on.

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/services/call.h"
#include "server/services/service_parts.h"

namespace voxserve {

// Makes the call of a stream. parts outlive it.
std::shared_ptr<Call> MakeInferStream(const ServiceParts* parts, grpc::CallbackServerContext* context);

}  // namespace voxserve
