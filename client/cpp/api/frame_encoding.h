#pragma once

// Private to the library: encodes an InferStreamRequest in parts. Protobuf merges encoded messages that follow one
// another. So a cloud that is sent many times (by a load generator) is encoded once, and its points are never copied
// again: the parts of a request become the slices of one ByteBuffer.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <optional>

#include "absl/time/time.h"
#include "client/cpp/api/stream.h"

namespace voxserve::client {

// Returns the part of a request with the cloud.
grpc::Slice EncodeCloud(const PointCloud& cloud);

// Returns the part with the rest of a frame. A stamp here overrides the cloud's.
grpc::Slice EncodeFrameHeader(uint64_t frame_id, const FrameOptions& options,
                              std::optional<absl::Time> stamp = std::nullopt);

// Returns a part that sets reset_sweeps.
grpc::Slice EncodeResetSweeps();

// Returns the first message of a stream.
grpc::Slice EncodeConfig(const StreamOptions& options);

}  // namespace voxserve::client
