#pragma once

// Parses the service's messages from the bytes that a client sent, and bounds the memory that this takes.
//
// Protobuf alone would let a client take any amount of memory: 60 MiB of empty `fields {}` become 6 GiB of objects. So
// this parser works in two steps:
// 1. It walks through the slices of bytes that gRPC received. It copies the values of the points (a cloud's `data`, or
//    the raw_input_contents or packed fp32_contents of a ModelInferRequest) into a buffer of the engine, and gathers
//    all other bytes, the skeleton. It returns an error as soon as a limit (MessageLimits) is exceeded.
// 2. Protobuf parses the skeleton. So protobuf's rules hold: a submessage that comes several times is merged, the last
//    value of a field or of a oneof counts, unknown fields are kept, text is UTF-8.
//
// - Threads: pure functions, any thread. Nothing waits.
// - Ownership: the bytes stay the caller's. No result points into them, so the caller may clear them afterwards.
// - Errors: INVALID_ARGUMENT, reason MALFORMED_MESSAGE, names the problem and its place (bytes from the message's
//   start). RESOURCE_EXHAUSTED, reason OUT_OF_MEMORY, if an allocation failed. The message is empty after an error. No
//   exception leaves these functions.

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/host_buffer.h"
#include "open_inference.pb.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

// Limits of a message, well above what a sensor's driver or a client sends. A cloud of 256 fields, each with a name of
// 200 bytes and every member of v1::PointField set, is within all limits.
struct MessageLimits {
  // The most memory that a message takes without the values of its points, during parsing and afterwards. The parser
  // does not check this limit: it follows from the limits below. (Protobuf 36 takes 317 KiB, 3.21 less than 300 KiB.)
  static constexpr int64_t kMaxBytesBesideData = int64_t{320} << 10;
  static constexpr int64_t kMaxSkeletonBytes = int64_t{64} << 10;  // serialized, without the values of points
  // The number of values in the whole message. A value is a tag on the wire with its contents, and becomes at most one
  // object in memory. A v1::PointField counts up to 7: itself and its 6 members.
  static constexpr int kMaxValues = 2048;
  static constexpr int kMaxCloudFields = 256;
  static constexpr int kMaxRequestTensors = 256;  // inputs and outputs of a ModelInferRequest together
  static constexpr int kMaxTextBytes = 256;       // per string: a model, a request's id, a field's name
  static constexpr int kMaxDepth = 100;           // nesting of messages and groups, as in protobuf
};

// Makes a buffer of this many bytes for the values of a cloud's points: Engine::AllocateCloud for requests and frames.
using CloudAllocator = absl::FunctionRef<absl::StatusOr<HostBuffer>(int64_t bytes)>;

// Parses an InferRequest. data: gets the cloud's data, in a buffer made by `allocate`; the message's own `data` is
// empty. An error of `allocate` is returned unchanged.
absl::Status ParseInferRequest(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferRequest* message,
                               HostBuffer* data);

// Counts in which forms a ModelInferRequest carried its values. The parser keeps only the values that came last, so
// TranslateRequest (open_inference.h) refuses a request that carried values more than once.
struct TensorParts {
  int num_raw = 0;         // entries of raw_input_contents
  int num_packed = 0;      // packed fp32_contents, which have the same bytes as raw_input_contents
  bool is_shared = false;  // a parameter says that the values are in shared memory; the parser does not set this
};

// Parses a request of the open inference protocol. data: gets the values of the input, in a buffer made by `allocate`;
// the message's own raw_input_contents and packed fp32_contents are empty. parts: gets the forms of the values.
absl::Status ParseModelInferRequest(const grpc::ByteBuffer& bytes, CloudAllocator allocate,
                                    inference::ModelInferRequest* message, HostBuffer* data, TensorParts* parts);

// Parses a message of an InferStream, as ParseInferRequest does.
absl::Status ParseStreamRequest(const grpc::ByteBuffer& bytes, CloudAllocator allocate, v1::InferStreamRequest* message,
                                HostBuffer* data);

// The frame that a message of an InferStream belongs to.
struct FrameName {
  v1::InferStreamRequest::RequestCase kind = v1::InferStreamRequest::REQUEST_NOT_SET;  // kFrame, kPart, or another
  std::optional<uint64_t> frame_id;  // none if it cannot be read, or the message is neither a frame nor a part
};
FrameName FrameNameOf(const v1::InferStreamRequest& message);
// Does the same for a message that could not be parsed, or is refused without being parsed, as far as it can be read:
// - kind: whichever comes last in the bytes, else REQUEST_NOT_SET;
// - frame_id: wherever the bad part is. It cannot be read if a field before it has a wrong length. A frame without the
//   field has the id 0 only if it can be read to its end.
FrameName FrameNameOf(const grpc::ByteBuffer& bytes);

// Parses a message that has no cloud. A message of more than max_bytes bytes is an error too (MALFORMED_MESSAGE).
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, int64_t max_bytes, google::protobuf::Message* message);

// Serializes a message as gRPC does. Returns RESOURCE_EXHAUSTED (RESPONSE_TOO_LARGE) if the message has more than
// 2 GiB, protobuf's limit.
absl::StatusOr<grpc::ByteBuffer> Serialize(const google::protobuf::Message& message);

}  // namespace voxserve
