// The fuzzer's input is an encoded message of InferenceService.InferStream.

#include "server/codec/message_parser.h"
#include "tests/fuzz/requests.h"

using namespace voxserve;  // NOLINT(google-build-using-namespace): FUZZER is in no namespace

FUZZER(stream_request) {
  fuzz::SilenceProtobuf();
  const std::string_view bytes = fuzz::Text(data, size);
  const grpc::ByteBuffer slices = fuzz::InSlices(bytes);
  v1::InferStreamRequest message;
  HostBuffer points;
  const absl::Status status = ParseStreamRequest(slices, HostBuffer::Create, &message, &points);
  {
    v1::InferStreamRequest whole = message;
    if (points.size() > 0) {
      v1::PointCloud* const cloud =
          whole.has_part() ? whole.mutable_part()->mutable_cloud() : whole.mutable_frame()->mutable_cloud();
      cloud->set_data(std::string(points.bytes()));
    }
    fuzz::CheckAgainstProtobuf(bytes, status, whole);
  }
  // The server answers a frame that it cannot parse by the frame's id, so FrameNameOf must find the id in every message
  // that parses, and must not fail on any other bytes.
  const FrameName frame = FrameNameOf(slices);
  if (status.ok()) FUZZ_CHECK(frame.kind == message.request_case());
  if (status.ok()) FUZZ_CHECK(frame.frame_id == FrameNameOf(message).frame_id);
  if (!status.ok()) return 0;

  if (message.has_config()) {
    const auto config = DecodeStreamConfig(message.config());
    if (!config.ok()) FUZZ_CHECK(!ReasonOf(config.status()).empty());
  }
  if (message.has_frame()) {
    (void)DecodePose(message.frame().pose());
    fuzz::DecodeAndReadCloud(message.mutable_frame()->mutable_cloud(), std::move(points));
  }
  if (message.has_part()) {
    fuzz::DecodeAndReadCloud(message.mutable_part()->mutable_cloud(), std::move(points));
  }
  return 0;
}
