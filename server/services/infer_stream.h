#pragma once

// voxserve.v1.InferenceService.InferStream: gRPC's side of a StreamSession.
//
// - One message is on its way in each direction. A stream reads no further while answers that its client does not read
//   pile up, or while its session has no room; the bytes of clouds, sweeps and answers are bounded by ByteLimits.
// - A stream ends when every frame that it took has been answered: with OK when the client has half-closed, with an
//   error when it broke the protocol, fell silent, or the server drains. A client that is gone has its frames
//   cancelled.
// - A frame whose bytes are no message is answered with an error, and ends nothing but itself.

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/services/call.h"
#include "server/services/service_parts.h"

namespace voxserve {

// Makes the call of a stream. parts outlive it.
std::shared_ptr<Call> MakeInferStream(const ServiceParts* parts, grpc::CallbackServerContext* context);

}  // namespace voxserve
