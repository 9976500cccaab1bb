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

// FrameForm says whether a request of a stream holds a whole frame, or one part of a frame (v1::FramePart). Below, "the
// part that holds" something is a slice of the request's bytes.
enum class FrameForm { kWhole, kInParts };

// Returns the part that holds the cloud of a frame, or of a part of a frame.
grpc::Slice EncodeCloud(const PointCloud& cloud, FrameForm form = FrameForm::kWhole);

// Returns the part that holds the rest of a frame. `stamp` becomes the stamp of a cloud that was encoded without a
// stamp. If the cloud has its own stamp, that one is used, since the cloud's part comes later.
grpc::Slice EncodeFrameHeader(uint64_t frame_id, const FrameOptions& options,
                              std::optional<absl::Time> stamp = std::nullopt);

// Does the same for a frame that comes in parts: the part with this index.
grpc::Slice EncodePartHeader(uint64_t frame_id, uint32_t index, bool is_last, const FrameOptions& options,
                             std::optional<absl::Time> stamp = std::nullopt);

// Returns a part that sets reset_sweeps. It may follow the request's other parts.
grpc::Slice EncodeResetSweeps(FrameForm form = FrameForm::kWhole);

// Returns the first message of a stream, which holds the stream's config. This is a whole request, not a part.
grpc::Slice EncodeConfig(const StreamOptions& options);

}  // namespace voxserve::client
