#include "client/cpp/api/frame_encoding.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

constexpr size_t kMaxTagAndLength = 16;  // bytes of a field's tag (for numbers below 16) and length, at most

grpc::Slice Encode(const google::protobuf::MessageLite& message) {
  const std::string bytes = message.SerializeAsString();
  return grpc::Slice(bytes.data(), bytes.size());
}

void SetDuration(absl::Duration duration, google::protobuf::Duration* message) {
  absl::Duration rest;
  message->set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &rest));
  message->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

void SetTime(absl::Time time, google::protobuf::Timestamp* message) {
  const int64_t seconds = absl::ToUnixSeconds(time);  // rounds down
  message->set_seconds(seconds);
  message->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
}

// Frame: v1::StreamFrame or v1::FramePart.
template <typename Frame>
void FillHeader(uint64_t frame_id, const FrameOptions& options, std::optional<absl::Time> stamp, Frame* frame) {
  frame->set_frame_id(frame_id);
  frame->set_reset_sweeps(options.reset_sweeps);
  if (stamp) SetTime(*stamp, frame->mutable_cloud()->mutable_stamp());
  if (!options.pose) return;
  v1::Pose& pose = *frame->mutable_pose();
  pose.set_x(options.pose->x);
  pose.set_y(options.pose->y);
  pose.set_z(options.pose->z);
  pose.set_qw(options.pose->qw);
  pose.set_qx(options.pose->qx);
  pose.set_qy(options.pose->qy);
  pose.set_qz(options.pose->qz);
}

}  // namespace

grpc::Slice EncodeCloud(const PointCloud& cloud, FrameForm form) {
  // Encodes the messages around the cloud by hand: message objects would need a copy of the cloud.
  const uint64_t cloud_bytes = cloud.ByteSizeLong();
  static_assert(v1::StreamFrame::kCloudFieldNumber == static_cast<int>(v1::FramePart::kCloudFieldNumber));
  const int form_field = form == FrameForm::kWhole ? static_cast<int>(v1::InferStreamRequest::kFrameFieldNumber)
                                                   : static_cast<int>(v1::InferStreamRequest::kPartFieldNumber);
  const uint64_t frame_bytes =
      WireFormatLite::TagSize(v1::StreamFrame::kCloudFieldNumber, WireFormatLite::TYPE_MESSAGE) +
      CodedOutputStream::VarintSize64(cloud_bytes) + cloud_bytes;
  uint8_t envelope[2 * kMaxTagAndLength];
  uint8_t* end = envelope;
  const auto open = [&end](int field, uint64_t size) {
    end = WireFormatLite::WriteTagToArray(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED, end);
    end = CodedOutputStream::WriteVarint64ToArray(size, end);
  };
  open(form_field, frame_bytes);
  open(v1::StreamFrame::kCloudFieldNumber, cloud_bytes);
  const size_t envelope_bytes = static_cast<size_t>(end - envelope);
  grpc::Slice slice(envelope_bytes + cloud_bytes);
  uint8_t* bytes = const_cast<uint8_t*>(slice.begin());  // safe: no other owner has the slice yet
  std::copy(envelope, end, bytes);
  [[maybe_unused]] const uint8_t* const written = cloud.SerializeWithCachedSizesToArray(bytes + envelope_bytes);
  return slice;
}

grpc::Slice EncodeFrameHeader(uint64_t frame_id, const FrameOptions& options, std::optional<absl::Time> stamp) {
  v1::InferStreamRequest request;
  FillHeader(frame_id, options, stamp, request.mutable_frame());
  return Encode(request);
}

grpc::Slice EncodePartHeader(uint64_t frame_id, uint32_t index, bool is_last, const FrameOptions& options,
                             std::optional<absl::Time> stamp) {
  v1::InferStreamRequest request;
  v1::FramePart& part = *request.mutable_part();
  FillHeader(frame_id, options, stamp, &part);
  part.set_index(index);
  part.set_is_last(is_last);
  return Encode(request);
}

grpc::Slice EncodeResetSweeps(FrameForm form) {
  v1::InferStreamRequest request;
  if (form == FrameForm::kWhole) {
    request.mutable_frame()->set_reset_sweeps(true);
  } else {
    request.mutable_part()->set_reset_sweeps(true);
  }
  return Encode(request);
}

grpc::Slice EncodeConfig(const StreamOptions& options) {
  v1::InferStreamRequest request;
  v1::StreamConfig& config = *request.mutable_config();
  config.set_model(options.model);
  config.set_version(options.version);
  config.set_return_scores(options.return_scores);
  config.set_priority(options.priority);
  config.set_policy(options.policy == StreamPolicy::kLatest ? v1::STREAM_POLICY_LATEST : v1::STREAM_POLICY_QUEUE);
  if (options.frame_timeout) SetDuration(*options.frame_timeout, config.mutable_frame_timeout());
  config.set_max_queued_frames(static_cast<uint32_t>(options.max_queued_frames));
  if (options.sweeps) {
    v1::SweepAccumulation& sweeps = *config.mutable_sweeps();
    sweeps.set_num_sweeps(static_cast<uint32_t>(options.sweeps->num_sweeps));
    sweeps.set_age_feature(options.sweeps->age_feature);
    if (options.sweeps->max_age) SetDuration(*options.sweeps->max_age, sweeps.mutable_max_age());
  }
  if (options.sample) *config.mutable_sample() = options.sample->ToProto();
  for (const std::string& name : options.tensors.names) config.add_outputs(name);
  if (options.tensors.type != v1::ELEMENT_TYPE_FLOAT32) config.set_tensor_type(options.tensors.type);
  return Encode(request);
}

}  // namespace voxserve::client
