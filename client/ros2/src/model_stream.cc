#include "model_stream.h"

#include <type_traits>
#include <utility>

namespace voxserve_ros {

using voxserve::Status;
using voxserve::StatusCode;

template <typename T>
Status ModelStream<T>::CheckModel(const voxserve::Result<voxserve::Model>& model) const {
  if (!model.ok()) return model.status();
  if (model->state() != voxserve::ModelState::kReady) {
    return Status(StatusCode::kUnavailable, "the model \"" + settings_.model + "\" is not ready");
  }
  constexpr bool kWantsLabels = std::is_same_v<T, voxserve::Segmentation>;
  if (kWantsLabels ? model->has_labels() : model->has_boxes()) return {};
  return Status(StatusCode::kInvalidArgument,
                "the model \"" + settings_.model + "\" has no " + (kWantsLabels ? "labels" : "boxes"));
}

template <typename T>
voxserve::Result<voxserve::Stream> ModelStream<T>::Open(const voxserve::StreamOptions& options,
                                                        voxserve::OnResult<T> on_result,
                                                        voxserve::StreamEvents events) {
  if constexpr (std::is_same_v<T, voxserve::Segmentation>) {
    return client_->OpenStream(options, std::move(on_result), std::move(events));
  } else {
    return client_->OpenDetectionStream(options, std::move(on_result), std::move(events));
  }
}

template <typename T>
Status ModelStream<T>::OpenIfClosed() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (connection_ != nullptr) {
      const std::lock_guard<std::mutex> of_connection(connection_->mutex);
      if (!connection_->has_ended) return {};
    }
  }
  Close();
  voxserve::Result<voxserve::Model> model = client_->GetModel(settings_.model);
  const Status status = CheckModel(model);
  if (!status.ok()) {
    counts_.SetConnected(false, status.ToString());
    return status;
  }
  auto connection = std::shared_ptr<Connection>(new Connection{.model = *std::move(model), .mutex = {}, .pending = {}});
  voxserve::StreamOptions options(settings_.model);
  options.set_policy(voxserve::StreamPolicy::kLatest).set_reopen_for(settings_.reopen_for);
  if (settings_.frame_timeout) options.set_frame_timeout(*settings_.frame_timeout);
  voxserve::StreamEvents events;
  events.set_on_reopen([this](const Status& why) { counts_.SetConnected(false, why.ToString()); })
      .set_on_end([this, connection](const Status& why) {
        counts_.SetConnected(false, why.ok() ? "the stream was closed" : why.ToString());
        const std::lock_guard<std::mutex> lock(connection->mutex);
        connection->has_ended = true;
      });
  counts_.SetConnected(true);  // before the stream's first event, which may say otherwise
  voxserve::Result<voxserve::Stream> stream = Open(
      options,
      [this, connection](uint64_t frame_id, const voxserve::Result<T>& result) {
        TakeResult(connection.get(), frame_id, result);
      },
      std::move(events));
  if (!stream.ok()) {
    counts_.SetConnected(false, stream.status().ToString());
    return stream.status();
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  connection_ = std::move(connection);
  stream_.emplace(*std::move(stream));
  return {};
}

template <typename T>
void ModelStream<T>::Send(const Message& message) {
  counts_.AddFrame();
  voxserve::Result<voxserve::PointCloud> cloud = ToPointCloud(*message, settings_.cloud);
  if (!cloud.ok()) return counts_.AddFailure(cloud.status());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!stream_.has_value()) {
    return counts_.AddFailure(Status(StatusCode::kUnavailable, "a cloud came without a connection", "NO_STREAM"));
  }
  const uint64_t frame_id = next_frame_id_++;
  {
    const std::lock_guard<std::mutex> of_connection(connection_->mutex);
    connection_->pending[frame_id] = {message, std::chrono::steady_clock::now()};
  }
  const Status status = stream_->Send(frame_id, *cloud);
  if (status.ok()) return;
  counts_.AddFailure(status);
  const std::lock_guard<std::mutex> of_connection(connection_->mutex);
  connection_->pending.erase(frame_id);
}

template <typename T>
void ModelStream<T>::TakeResult(Connection* connection, uint64_t frame_id, const voxserve::Result<T>& result) {
  Pending pending;
  {
    const std::lock_guard<std::mutex> lock(connection->mutex);
    const auto found = connection->pending.find(frame_id);
    if (found == connection->pending.end()) return;
    pending = std::move(found->second);
    connection->pending.erase(found);
  }
  if (result.ok() || result.status().is_from_server()) counts_.SetConnected(true);
  if (!result.ok()) return counts_.AddFailure(result.status());
  counts_.SetWarnings(result->warnings());
  on_answer_(*pending.message, *result, connection->model);
  const std::chrono::duration<double, std::milli> latency = std::chrono::steady_clock::now() - pending.arrival;
  counts_.AddAnswer(latency.count());
}

template <typename T>
void ModelStream<T>::Close() {
  std::optional<voxserve::Stream> stream;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stream.swap(stream_);
    connection_.reset();
  }
  // Destroyed here, without the lock: it waits for the last callback.
}

template class ModelStream<voxserve::Segmentation>;
template class ModelStream<voxserve::Detections>;

}  // namespace voxserve_ros
