#pragma once

// EncodeFrameResult makes the message with which a stream answers a frame.
//
// Threads: any thread. Nothing waits.

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/tensor/infer_result.h"
#include "server/calls/byte_limits.h"
#include "server/calls/request_codec.h"
#include "server/calls/request_telemetry.h"
#include "server/identity/authoriser.h"

namespace voxserve {

struct EncodedFrameResult {
  grpc::ByteBuffer message;  // an InferStreamResponse; not Valid() if it is too large for gRPC
  HeldBytes held;            // for the message
  bool is_ok = false;        // false: the message has an error
};

// Encodes the frame's result or error for its caller, who sees no more of an error than Caller::Narrowed says. Tells
// the telemetry about it. Throws std::bad_alloc if there is no memory.
EncodedFrameResult EncodeFrameResult(const Caller& caller, uint64_t frame_id, absl::StatusOr<InferResult> result,
                                     int num_sweeps, RequestCodec* codec, const RequestTelemetry& telemetry);

}  // namespace voxserve
