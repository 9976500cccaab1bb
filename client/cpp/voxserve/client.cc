#include <voxserve/client.h>

#include <utility>

#include "client/cpp/voxserve/data.h"

namespace voxserve {
inline namespace abi0 {
namespace {

Status MovedFrom() { return Status(StatusCode::kFailedPrecondition, "the client was moved from"); }

client::PointCloud TakeCloud(const PointCloud& cloud) {
  return cloud.data() == nullptr ? client::PointCloud() : std::move(cloud.data()->cloud);
}

Result<Model> ToModel(v1::ModelVersion model) {
  return Model(std::make_shared<const detail::ModelData>(detail::ModelData{std::move(model)}));
}

template <typename T>
client::StreamCallbacksOf<T> ToCallbacks(OnResult<typename detail::PublicOf<T>::Type> on_result,
                                         const detail::StreamEventsData& events) {
  client::StreamCallbacksOf<T> callbacks;
  callbacks.on_going_away = events.on_going_away;
  if (on_result) {
    callbacks.on_result = [on_result = std::move(on_result)](client::FrameOutcomeOf<T> frame) {
      on_result(frame.frame_id, detail::ToResult(std::move(frame.result), frame.num_sweeps));
    };
  }
  if (events.on_reopen) {
    callbacks.on_reopen = [on_reopen = events.on_reopen](const absl::Status& status) {
      on_reopen(detail::ToStatus(status));
    };
  }
  if (events.on_end) {
    callbacks.on_end = [on_end = events.on_end](const absl::Status& status) { on_end(detail::ToStatus(status)); };
  }
  return callbacks;
}

Result<Stream> ToStream(absl::StatusOr<std::unique_ptr<client::Stream>> stream) {
  if (!stream.ok()) return detail::ToStatus(stream.status());
  return Stream(std::make_unique<detail::StreamData>(detail::StreamData{*std::move(stream)}));
}

template <typename T>
Result<T> ToValue(absl::StatusOr<T> value) {
  if (!value.ok()) return detail::ToStatus(value.status());
  return *std::move(value);
}

}  // namespace

std::string_view LibraryVersion() noexcept { return VOXSERVE_VERSION; }

Result<Client> Client::Create(const ClientOptions& options) {
  absl::StatusOr<std::unique_ptr<client::Client>> made = client::Client::Create(options.data().options);
  if (!made.ok()) return detail::ToStatus(made.status());
  return Client(std::make_unique<detail::ClientData>(detail::ClientData{*std::move(made)}));
}

Client::Client(std::unique_ptr<detail::ClientData> data) noexcept : data_(std::move(data)) {}
Client::~Client() = default;
Client::Client(Client&& other) noexcept = default;
Client& Client::operator=(Client&& other) noexcept = default;

Result<Segmentation> Client::Infer(const InferOptions& options, PointCloud cloud) {
  if (data_ == nullptr) return MovedFrom();
  return detail::ToResult(data_->client->Infer(options.data().options, TakeCloud(cloud)));
}

Result<Detections> Client::Detect(const InferOptions& options, PointCloud cloud) {
  if (data_ == nullptr) return MovedFrom();
  return detail::ToResult(data_->client->Detect(options.data().options, TakeCloud(cloud)));
}

Result<Answer> Client::InferTensors(const InferOptions& options, PointCloud cloud) {
  if (data_ == nullptr) return MovedFrom();
  return detail::ToResult(data_->client->InferTensors(options.data().options, TakeCloud(cloud)));
}

void Client::InferAsync(const InferOptions& options, PointCloud cloud, std::function<void(Result<Segmentation>)> done) {
  if (data_ == nullptr) return done(MovedFrom());
  data_->client->InferAsync(options.data().options, TakeCloud(cloud),
                            [done = std::move(done)](absl::StatusOr<client::Segmentation> answer) {
                              done(detail::ToResult(std::move(answer)));
                            });
}

void Client::DetectAsync(const InferOptions& options, PointCloud cloud, std::function<void(Result<Detections>)> done) {
  if (data_ == nullptr) return done(MovedFrom());
  data_->client->DetectAsync(options.data().options, TakeCloud(cloud),
                             [done = std::move(done)](absl::StatusOr<client::Detections> answer) {
                               done(detail::ToResult(std::move(answer)));
                             });
}

Result<Stream> Client::OpenStream(const StreamOptions& options, OnResult<Segmentation> on_result, StreamEvents events) {
  if (data_ == nullptr) return MovedFrom();
  return ToStream(data_->client->OpenStream(options.data().options,
                                            ToCallbacks<client::Segmentation>(std::move(on_result), events.data())));
}

Result<Stream> Client::OpenDetectionStream(const StreamOptions& options, OnResult<Detections> on_result,
                                           StreamEvents events) {
  if (data_ == nullptr) return MovedFrom();
  return ToStream(data_->client->OpenDetectionStream(
      options.data().options, ToCallbacks<client::Detections>(std::move(on_result), events.data())));
}

Result<Stream> Client::OpenTensorStream(const StreamOptions& options, OnResult<Answer> on_result, StreamEvents events) {
  if (data_ == nullptr) return MovedFrom();
  return ToStream(data_->client->OpenTensorStream(options.data().options,
                                                  ToCallbacks<client::Answer>(std::move(on_result), events.data())));
}

Result<std::vector<Model>> Client::ListModels() {
  if (data_ == nullptr) return MovedFrom();
  absl::StatusOr<std::vector<v1::ModelVersion>> listed = data_->client->ListModels();
  if (!listed.ok()) return detail::ToStatus(listed.status());
  std::vector<Model> models;
  for (v1::ModelVersion& model : *listed) models.push_back(*ToModel(std::move(model)));
  return models;
}

Result<Model> Client::GetModel(std::string_view name, int64_t version) {
  if (data_ == nullptr) return MovedFrom();
  absl::StatusOr<v1::ModelVersion> model = data_->client->GetModel(detail::ToAbsl(name), version);
  if (!model.ok()) return detail::ToStatus(model.status());
  return ToModel(*std::move(model));
}

Result<std::vector<int64_t>> Client::LoadModel(std::string_view name, int64_t version) {
  if (data_ == nullptr) return MovedFrom();
  return ToValue(data_->client->LoadModel(detail::ToAbsl(name), version));
}

Result<std::vector<int64_t>> Client::UnloadModel(std::string_view name, int64_t version) {
  if (data_ == nullptr) return MovedFrom();
  return ToValue(data_->client->UnloadModel(detail::ToAbsl(name), version));
}

Result<bool> Client::IsServing() {
  if (data_ == nullptr) return MovedFrom();
  absl::StatusOr<client::Health> health = data_->client->CheckHealth();
  if (!health.ok()) return detail::ToStatus(health.status());
  return *health == client::Health::kServing;
}

}  // namespace abi0
}  // namespace voxserve
