#pragma once

// Helpers that the fuzzers of requests and of stream messages share.

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/error_reason.h"
#include "engine/runtime/host_buffer.h"
#include "server/codec/codec.h"
#include "tests/fuzz/fuzz.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::fuzz {

// Returns the bytes as a buffer of slices of at most 61 bytes each. Fields then cross the borders of slices, as they do
// in large messages.
inline grpc::ByteBuffer InSlices(std::string_view bytes) {
  constexpr size_t kSliceBytes = 61;
  std::vector<grpc::Slice> slices;
  for (size_t begin = 0; begin < bytes.size(); begin += kSliceBytes) {
    const std::string_view part = bytes.substr(begin, kSliceBytes);
    slices.emplace_back(part.data(), part.size());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// Silences protobuf's log, which would get a line for each text that is not UTF-8.
inline void SilenceProtobuf() { static const google::protobuf::LogSilencer silencer; }

// Checks the result of the server's parser. A refusal must be INVALID_ARGUMENT with the reason MALFORMED. An accepted
// message must equal the message that protobuf parses from the same bytes. parsed: the message of the server's parser,
// into which the caller has inserted the cloud's data again (the parser keeps them apart).
template <typename Message>
void CheckAgainstProtobuf(std::string_view bytes, const absl::Status& status, const Message& parsed) {
  if (!status.ok()) {
    FUZZ_CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    FUZZ_CHECK(ReasonOf(status) == error_reason::kMalformed);
    return;
  }
  Message expected;
  FUZZ_CHECK(expected.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())));
  FUZZ_CHECK(parsed.SerializeAsString() == expected.SerializeAsString());
}

// Decodes a cloud as the server does, and reads every field of its first and last points.
inline void DecodeAndReadCloud(v1::PointCloud* message, HostBuffer data) {
  (void)StampOf(*message);
  const auto cloud = DecodeCloud(message, std::move(data));
  if (!cloud.ok()) {
    FUZZ_CHECK(cloud.status().code() == absl::StatusCode::kInvalidArgument);
    FUZZ_CHECK(!ReasonOf(cloud.status()).empty());
    return;
  }
  const uint64_t num_points = cloud->num_points();
  if (num_points == 0) return;
  for (const voxserve::PointField& field : cloud->layout().fields) {
    float value = 0;
    cloud->ReadField(field, 0, 1, &value, 1);
    cloud->ReadField(field, num_points - 1, num_points, &value, 1);
  }
}

}  // namespace voxserve::fuzz
