#pragma once

// Implements voxserve.v1.InferenceService.InferStream. The call receives a client's frames, hands them to a
// StreamSession, and sends the answers.
//
// - The call is a StreamCall (stream_call.h): one message at a time is sent in each direction. The client's first
//   message is the config, and all others are frames.
// - End: after the client has half-closed, the call ends with OK as soon as every accepted frame has been answered. It
//   ends with an error if a message breaks the protocol (such as a wrong config, a second config, or a frame before the
//   config), if the client has been silent for too long, or if the server drains (shuts down). Then too the call first
//   answers the frames that it has accepted.
// - Back-pressure: the call reads no message while its session has no room for a frame. ByteLimits bounds the bytes of
//   clouds, sweeps and answers.
// - A frame whose bytes are malformed is answered with an error, and the stream goes on. A malformed message before the
//   config ends the stream.

#include <grpcpp/grpcpp.h>

#include <memory>

#include "server/calls/call.h"
#include "server/calls/call_environment.h"

namespace voxserve {

// Makes the call for one stream. `parts` must outlive the call.
std::shared_ptr<Call> MakeInferStream(const CallEnvironment* parts, grpc::CallbackServerContext* context);

}  // namespace voxserve
