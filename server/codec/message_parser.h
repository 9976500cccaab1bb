#pragma once

// Parses the service's messages from the bytes that a client sent, within bounds.
//
// Protobuf alone takes memory as a client likes: 60 MiB of empty `fields {}` become 6 GiB of objects. Here a message is
// first walked in the slices that gRPC received. The walk copies a cloud's `data` once, to the place where it stays: a
// buffer of the engine's, which a GPU may copy it from. It gathers all the rest, the skeleton, and stops where a limit
// is passed. Only then does protobuf parse the skeleton, so a message means what it means to protobuf: submessages that
// come twice are merged, the last value of a field or of a oneof counts, unknown fields are kept, text is UTF-8.
//
// - Threads: pure functions, any thread. Nothing waits.
// - Ownership: the bytes stay the caller's. Nothing of the result points into them, so the caller clears them after.
// - Errors: INVALID_ARGUMENT, reason MALFORMED_MESSAGE, names what is wrong and where (bytes from the message's start).
//   RESOURCE_EXHAUSTED, reason OUT_OF_MEMORY, where an allocation failed. The message is empty then, but for what
//   ParseStreamRequest says. No exception leaves these functions.

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/host_buffer.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

// Limits of a message, well above what a sensor's driver or a client sends. A cloud of 256 fields, each with a name of
// 200 bytes and all its values, passes them all.
struct MessageLimits {
  // The memory of a parsed message beside its cloud's data, and while it is parsed. It follows from the limits below.
  static constexpr int64_t kMaxBytesBesideData = int64_t{300} << 10;
  static constexpr int64_t kMaxSkeletonBytes = int64_t{64} << 10;  // of a message without its cloud's data
  // Values in all: each is a tag on the wire, and an object in memory at the worst. A field of a cloud has up to 7.
  static constexpr int kMaxValues = 2048;
  static constexpr int kMaxCloudFields = 256;
  static constexpr int kMaxTextBytes = 256;  // of one string: a model, a request's id, a field's name
  static constexpr int kMaxDepth = 100;      // of messages and groups in each other, as protobuf has it
};

// Makes a buffer of so many bytes for a cloud's data, as Engine::AllocateCloud does.
using CloudAllocator = absl::FunctionRef<absl::StatusOr<HostBuffer>(int64_t bytes)>;

// data: the cloud's, of a buffer that `allocate` made; the message's own `data` is empty. An error of `allocate` is
// returned as it is.
absl::Status ParseInferRequest(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferRequest* message,
                               HostBuffer* data);

// The same of a stream's message. Where it fails it leaves in `message` what is needed to answer, as far as that can
// still be read:
// - request_case() is kFrame or kConfig where the bytes hold the one or the other last, else REQUEST_NOT_SET;
// - frame().frame_id() is the frame's id, whether it stands before or after the bad part, unless the length of what
//   stands before it is itself wrong; 0 where it cannot be read. Nothing else of the message is set.
absl::Status ParseStreamRequest(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferStreamRequest* message,
                                HostBuffer* data);

// Returns the id of the frame in a stream's message that nobody parses, as far as it can be read; else 0.
uint64_t FrameIdOf(const grpc::ByteBuffer& bytes);

// For messages without clouds. A message of more than max_bytes is malformed too.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, int64_t max_bytes, google::protobuf::Message* message);

// Serializes as gRPC does. RESOURCE_EXHAUSTED (RESPONSE_TOO_LARGE) beyond the 2 GiB that protobuf can write.
absl::StatusOr<grpc::ByteBuffer> Serialize(const google::protobuf::Message& message);

}  // namespace voxserve
