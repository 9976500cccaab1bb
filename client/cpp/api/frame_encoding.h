#pragma once

// Private to the library: these functions encode an InferStreamRequest in parts. If the bytes of several encoded
// messages follow each other, protobuf parses them as one merged message. So the parts of a request can be the slices
// of one ByteBuffer: first a frame's header, then its cloud. `voxserve-client bench` encodes a cloud once, sends it
// many times, and never copies its points again. Pure functions.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <optional>

#include "absl/time/time.h"
#include "client/cpp/api/stream.h"

namespace voxserve::client {

// Returns the part that holds a frame's cloud.
grpc::Slice EncodeCloud(const PointCloud& cloud);

// Returns the part that holds the rest of a frame. `stamp` becomes the stamp of a cloud that was encoded without a
// stamp. If the cloud has its own stamp, that one is used, since the cloud's part comes later.
grpc::Slice EncodeFrameHeader(uint64_t frame_id, const FrameOptions& options,
                              std::optional<absl::Time> stamp = std::nullopt);

// Returns a part that sets reset_sweeps of a frame. It may follow the frame's other parts.
grpc::Slice EncodeResetSweeps();

// Returns the first message of a stream, which holds the stream's config. This is a whole request, not a part.
grpc::Slice EncodeConfig(const StreamOptions& options);

}  // namespace voxserve::client
