// The fuzzer's input is an encoded request of InferenceService.Infer.

#include "server/codec/message_parser.h"
#include "tests/fuzz/requests.h"

using namespace voxserve;  // NOLINT(google-build-using-namespace): FUZZER is in no namespace

FUZZER(infer_request) {
  fuzz::SilenceProtobuf();
  const std::string_view bytes = fuzz::Text(data, size);
  v1::InferRequest message;
  HostBuffer points;
  const absl::Status status = ParseInferRequest(fuzz::InSlices(bytes), HostBuffer::Create, &message, &points);
  {
    v1::InferRequest whole = message;
    if (points.size() > 0) whole.mutable_cloud()->set_data(std::string(points.bytes()));
    fuzz::CheckAgainstProtobuf(bytes, status, whole);
  }
  if (!status.ok()) return 0;

  fuzz::DecodeAndReadCloud(message.mutable_cloud(), std::move(points));
  const auto task = DecodeRequest(message, PointCloud());
  if (!task.ok()) FUZZ_CHECK(task.status().code() == absl::StatusCode::kInvalidArgument);
  return 0;
}
