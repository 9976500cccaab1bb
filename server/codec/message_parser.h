#pragma once

// Parses the service's messages from the bytes that a client sent, within bounds.
//
// Protobuf alone lets a client take any amount of memory: 60 MiB of empty `fields {}` become 6 GiB of objects. So this
// parser first walks through the slices that gRPC received. The walk copies a cloud's `data` once, into a buffer of the
// engine, from which a GPU may copy it. It gathers all other bytes, the skeleton, and stops when a limit is exceeded.
// Only then does protobuf parse the skeleton, so protobuf's rules hold: repeated submessages are merged, the last value
// of a field or of a oneof counts, unknown fields are kept, text is UTF-8.
//
// - Threads: pure functions, any thread. Nothing waits.
// - Ownership: the bytes stay the caller's. No result points into them, so the caller may clear them afterwards.
// - Errors: INVALID_ARGUMENT, reason MALFORMED_MESSAGE, names the problem and its place (bytes from the message's
//   start). RESOURCE_EXHAUSTED, reason OUT_OF_MEMORY, if an allocation failed. The message is empty after an error,
//   except as ParseStreamRequest says. No exception leaves these functions.

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/host_buffer.h"
#include "open_inference.pb.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

// Limits of a message, well above what a sensor's driver or a client sends. A cloud of 256 fields, each with a name of
// 200 bytes and all its values, is within all of them.
struct MessageLimits {
  // The memory of a parsed message without its cloud's data, also during parsing. It follows from the limits below.
  static constexpr int64_t kMaxBytesBesideData = int64_t{300} << 10;
  static constexpr int64_t kMaxSkeletonBytes = int64_t{64} << 10;  // of a message without its cloud's data
  // Values in all. Each is a tag on the wire, and at worst an object in memory. A field of a cloud has up to 7.
  static constexpr int kMaxValues = 2048;
  static constexpr int kMaxCloudFields = 256;
  static constexpr int kMaxRequestTensors = 256;  // inputs and outputs of a ModelInferRequest together
  static constexpr int kMaxTextBytes = 256;       // per string: a model, a request's id, a field's name
  static constexpr int kMaxDepth = 100;           // nesting of messages and groups, as in protobuf
};

// Makes a buffer of this many bytes for a cloud's data, as Engine::AllocateCloud does.
using CloudAllocator = absl::FunctionRef<absl::StatusOr<HostBuffer>(int64_t bytes)>;

// Parses an InferRequest. data: gets the cloud's data, in a buffer made by `allocate`; the message's own `data` is
// empty. An error of `allocate` is returned unchanged.
absl::Status ParseInferRequest(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferRequest* message,
                               HostBuffer* data);

// How the values of a ModelInferRequest came. Only the last ones are kept, so a request with several is refused later.
struct TensorParts {
  int num_raw = 0;         // entries of raw_input_contents
  int num_packed = 0;      // packed fp32_contents, which have the same bytes as raw ones
  bool is_shared = false;  // they are in shared memory, as a parameter of the input says; the parser does not set this
};

// Parses a request of the open inference protocol. data: gets its values, in a buffer made by `allocate`; the message's
// own raw_input_contents and packed fp32_contents are empty.
absl::Status ParseModelInferRequest(const grpc::ByteBuffer& bytes, CloudAllocator allocate,
                                    inference::ModelInferRequest* message, HostBuffer* data, TensorParts* parts);

// Parses a stream's message in the same way. After an error it leaves in `message` what is needed for the answer, as
// far as that can still be read:
// - request_case() is kFrame or kConfig, whichever comes last in the bytes, else REQUEST_NOT_SET;
// - frame().frame_id() is the frame's id, before or after the bad part, unless the length of a field before it is
//   wrong; 0 if it cannot be read. Nothing else of the message is set.
absl::Status ParseStreamRequest(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferStreamRequest* message,
                                HostBuffer* data);

// Returns the id of the frame in a stream's message that is refused unparsed, if it can be read; else 0.
uint64_t FrameIdOf(const grpc::ByteBuffer& bytes);

// Parses a message without clouds. A message of more than max_bytes counts as malformed.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, int64_t max_bytes, google::protobuf::Message* message);

// Serializes as gRPC does. RESOURCE_EXHAUSTED (RESPONSE_TOO_LARGE) above 2 GiB, protobuf's limit.
absl::StatusOr<grpc::ByteBuffer> Serialize(const google::protobuf::Message& message);

}  // namespace voxserve
