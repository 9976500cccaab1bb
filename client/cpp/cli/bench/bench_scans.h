#pragma once

// ReadBenchScans reads the scans that `voxserve-client bench` sends, and encodes each once.

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/api/channels.h"
#include "client/cpp/api/stream.h"
#include "client/cpp/cli/bench/bench_options.h"

namespace voxserve::client {

// The cloud of a frame, or of one of its parts: a slice of a request (frame_encoding.h).
struct BenchCloud {
  grpc::Slice bytes;
  uint64_t num_points = 0;
};

struct BenchScan {
  std::string file;
  uint64_t num_points = 0;
  grpc::ByteBuffer request;        // an encoded InferRequest; empty for streams
  std::vector<BenchCloud> clouds;  // for streams: the whole cloud, or the parts of --parts
  std::optional<Pose> pose;        // set if sweeps accumulate
};

// Reads the scans and encodes their requests. Returns the errors of reading the files, INVALID_ARGUMENT if the poses do
// not fit the scans, or RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE).
absl::StatusOr<std::vector<BenchScan>> ReadBenchScans(const BenchOptions& options, const Channels& channels);

}  // namespace voxserve::client
