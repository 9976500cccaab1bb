#include "server/services/frame_result.h"

#include <utility>

#include "server/codec/message_parser.h"
#include "server/codec/rpc_status.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

EncodedFrameResult EncodeFrameResult(const Caller& caller, uint64_t frame_id, absl::StatusOr<InferResult> result,
                                     int num_sweeps, RequestCodec* codec, const RequestTelemetry& telemetry) {
  v1::InferStreamResponse answer;
  v1::FrameResult& message = *answer.mutable_result();
  message.set_frame_id(frame_id);
  absl::Status status = caller.Narrowed(result.status());
  EncodedFrameResult encoded;
  if (result.ok()) {
    absl::StatusOr<HeldBytes> held = codec->Encode(&*result, message.mutable_response());
    status = held.status();
    if (held.ok()) encoded.held = *std::move(held);
  }
  encoded.is_ok = status.ok();
  if (status.ok()) {
    telemetry.Record(*result, *codec);
    *result = InferResult();  // its memory is free before the message is written
    message.set_num_sweeps(static_cast<uint32_t>(num_sweeps));
  } else {
    telemetry.Fail(status);
    message.clear_response();
    *message.mutable_status() = ToRpcStatus(status);
  }
  absl::StatusOr<grpc::ByteBuffer> bytes = Serialize(answer);
  if (bytes.ok()) encoded.message = *std::move(bytes);
  return encoded;
}

}  // namespace voxserve
