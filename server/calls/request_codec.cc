#include "server/calls/request_codec.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "engine/tensor/stage.h"
#include "server/codec/codec.h"

namespace voxserve {
namespace {

// An allowance for the bytes of a response that Hold does not measure: the stage kEncode, which Encode appends
// afterwards, and the FrameResult message around a frame's response.
constexpr int64_t kEnvelopeBytes = 64;

}  // namespace

absl::StatusOr<PointCloud> RequestCodec::Decode(v1::PointCloud* message, HostBuffer data) {
  const absl::Time start = SteadyNow();
  RETURN_IF_ERROR(StampOf(*message).status());
  absl::StatusOr<PointCloud> cloud = DecodeCloud(message, std::move(data));
  decode_time_ = SteadyNow() - start;
  return cloud;
}

absl::StatusOr<HeldBytes> RequestCodec::Encode(InferResult* result, v1::InferResponse* response) {
  const absl::Time start = SteadyNow();
  AppendStage({Stage::kDecode, decode_time_}, response);
  EncodeResult(*result, response);
  absl::StatusOr<HeldBytes> held = Hold(*response, start);
  if (held.ok()) AppendStage({Stage::kEncode, encode_time_}, response);
  return held;
}

absl::StatusOr<HeldBytes> RequestCodec::Hold(const google::protobuf::Message& response, absl::Time encode_start) {
  const int64_t bytes = static_cast<int64_t>(response.ByteSizeLong()) + kEnvelopeBytes;
  if (bytes > environment_->max_message_bytes) {
    return WithReason(absl::ResourceExhaustedError(
                          absl::StrCat("the response takes ", bytes, " bytes, more than the server's limit of ",
                                       environment_->max_message_bytes, " (--max_message_bytes)")),
                      error_reason::kResponseTooLarge);
  }
  absl::StatusOr<HeldBytes> held = environment_->bytes->Hold(ByteKind::kAnswer, client_, bytes);
  encode_time_ = SteadyNow() - encode_start;
  return held;
}

}  // namespace voxserve
