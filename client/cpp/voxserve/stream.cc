#include <voxserve/stream.h>

#include <utility>

#include "client/cpp/voxserve/data.h"

namespace voxserve {
inline namespace abi0 {
namespace {

// Calls send(stream, cloud), which sends the cloud.
template <typename SendCloud>
Status SendBy(detail::StreamData* data, const PointCloud& cloud, const SendCloud& send) {
  if (data == nullptr) {
    return Status(StatusCode::kFailedPrecondition, "the stream was moved from", "STREAM_ENDED");
  }
  const detail::PointCloudData* points = cloud.data();
  return detail::ToStatus(send(*data->stream, points == nullptr ? client::PointCloud() : points->cloud));
}

Status SendFrame(detail::StreamData* data, uint64_t frame_id, const PointCloud& cloud,
                 const client::FrameOptions& options) {
  return SendBy(data, cloud, [&](client::Stream& stream, const client::PointCloud& points) {
    return stream.Send(frame_id, points, options);
  });
}

Status SendFramePart(detail::StreamData* data, uint64_t frame_id, const PointCloud& cloud, bool is_last,
                     const client::FrameOptions& options) {
  return SendBy(data, cloud, [&](client::Stream& stream, const client::PointCloud& points) {
    return stream.SendPart(frame_id, points, is_last, options);
  });
}

client::FrameOptions OptionsOf(const Pose& pose, bool reset_sweeps) {
  return {.pose =
              client::Pose{
                  .x = pose.x, .y = pose.y, .z = pose.z, .qw = pose.qw, .qx = pose.qx, .qy = pose.qy, .qz = pose.qz},
          .reset_sweeps = reset_sweeps};
}

}  // namespace

StreamEvents::StreamEvents() : data_(std::make_unique<detail::StreamEventsData>()) {}
StreamEvents::~StreamEvents() = default;
StreamEvents::StreamEvents(const StreamEvents& other)
    : data_(std::make_unique<detail::StreamEventsData>(*other.data_)) {}
StreamEvents& StreamEvents::operator=(const StreamEvents& other) {
  *data_ = *other.data_;
  return *this;
}

StreamEvents& StreamEvents::set_on_going_away(std::function<void()> on_going_away) {
  data_->on_going_away = std::move(on_going_away);
  return *this;
}
StreamEvents& StreamEvents::set_on_reopen(std::function<void(Status)> on_reopen) {
  data_->on_reopen = std::move(on_reopen);
  return *this;
}
StreamEvents& StreamEvents::set_on_end(std::function<void(Status)> on_end) {
  data_->on_end = std::move(on_end);
  return *this;
}

Stream::Stream(std::unique_ptr<detail::StreamData> data) noexcept : data_(std::move(data)) {}
Stream::~Stream() = default;
Stream::Stream(Stream&& other) noexcept = default;
Stream& Stream::operator=(Stream&& other) noexcept = default;

Status Stream::Send(uint64_t frame_id, const PointCloud& cloud) { return SendFrame(data_.get(), frame_id, cloud, {}); }

Status Stream::Send(uint64_t frame_id, const PointCloud& cloud, const Pose& pose, bool reset_sweeps) {
  return SendFrame(data_.get(), frame_id, cloud, OptionsOf(pose, reset_sweeps));
}

Status Stream::SendPart(uint64_t frame_id, const PointCloud& cloud, bool is_last) {
  return SendFramePart(data_.get(), frame_id, cloud, is_last, {});
}

Status Stream::SendPart(uint64_t frame_id, const PointCloud& cloud, bool is_last, const Pose& pose, bool reset_sweeps) {
  return SendFramePart(data_.get(), frame_id, cloud, is_last, OptionsOf(pose, reset_sweeps));
}

void Stream::CloseSends() {
  if (data_ != nullptr) data_->stream->CloseSends();
}

void Stream::Cancel() {
  if (data_ != nullptr) data_->stream->Cancel();
}

}  // namespace abi0
}  // namespace voxserve
