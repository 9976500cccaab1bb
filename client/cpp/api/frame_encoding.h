#pragma once

// Encodes an InferStreamRequest in parts; private to the library. If the bytes of several encoded messages follow each
// other, protobuf parses them as one merged message. So the parts of a request can be the slices of one ByteBuffer: a
// frame's header, then its cloud. A load generator encodes a cloud once, sends it many times, and never copies its
// points again.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <optional>

#include "absl/time/time.h"
#include "client/cpp/api/stream.h"

namespace voxserve::client {

// Returns the part that holds a frame's cloud.
grpc::Slice EncodeCloud(const PointCloud& cloud);

// Returns the part that holds the rest of a frame. `stamp` gives a stamp to a cloud that was encoded without one. A
// cloud's own stamp would override `stamp`, since the cloud comes later.
grpc::Slice EncodeFrameHeader(uint64_t frame_id, const FrameOptions& options,
                              std::optional<absl::Time> stamp = std::nullopt);

// Returns a part that sets reset_sweeps of a frame; it may follow the other parts.
grpc::Slice EncodeResetSweeps();

// Returns the first message of a stream, its config. It is a whole request.
grpc::Slice EncodeConfig(const StreamOptions& options);

}  // namespace voxserve::client
