#include "client/cpp/api/client.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <utility>

#include "client/cpp/api/calls_in_flight.h"
#include "client/cpp/api/channels.h"
#include "client/cpp/api/reopening_stream.h"
#include "client/cpp/api/response.h"
#include "engine/base/steady_time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "voxserve/v1/admin.grpc.pb.h"
#include "voxserve/v1/inference.grpc.pb.h"

namespace voxserve::client {
namespace {

v1::InferRequest MakeRequest(const InferOptions& options, PointCloud cloud) {
  v1::InferRequest request;
  request.set_model(options.model);
  request.set_version(options.version);
  request.set_return_scores(options.return_scores);
  request.set_request_id(options.request_id);
  request.set_priority(options.priority);
  if (options.sample) *request.mutable_sample() = options.sample->ToProto();
  for (const std::string& name : options.tensors.names) request.add_outputs(name);
  if (options.tensors.type != v1::ELEMENT_TYPE_FLOAT32) request.set_tensor_type(options.tensors.type);
  *request.mutable_cloud() = std::move(cloud);
  return request;
}

Asked AskedOf(const InferOptions& options, const PointCloud& cloud) {
  return {.num_points = cloud.num_points(),
          .wants_scores = options.return_scores,
          .num_sampled = options.sample ? options.sample->num_points : 0,
          .tensors = options.tensors};
}

// Refuses scores for calls that return no labels; boxes have scores of their own.
absl::Status RefuseScores(bool return_scores) {
  if (!return_scores) return absl::OkStatus();
  return absl::InvalidArgumentError("return_scores is of labels: a box has its score");
}

// Converts the answers of a call to the results of the caller's stream.
template <typename Result>
ReopeningStream::Callbacks Reading(StreamCallbacksOf<Result> callbacks) {
  ReopeningStream::Callbacks reading{
      .of_call = {.on_going_away = std::move(callbacks.on_going_away), .on_end = std::move(callbacks.on_end)},
      .on_reopen = std::move(callbacks.on_reopen)};
  if (!callbacks.on_result) return reading;
  reading.of_call.on_result = [on_result = std::move(callbacks.on_result)](StreamCall::Outcome frame) {
    if (!frame.response.ok()) return on_result({frame.frame_id, frame.response.status(), frame.num_sweeps});
    on_result(
        {frame.frame_id, FromResponse<Result>(*std::move(frame.response), frame.asked, frame.sent), frame.num_sweeps});
  };
  return reading;
}

// Calls on_update for each answer of the call until it ends. An answer that cannot be parsed ends the call and sets
// `malformed`. gRPC's generated ClientReader would take it for the end of the answers, and wait until the server ends
// the call.
grpc::Status ReadTuneUpdates(const std::shared_ptr<grpc::Channel>& channel, const v1::TunePlanRequest& request,
                             grpc::ClientContext* context, const std::function<void(v1::TunePlanUpdate)>& on_update,
                             absl::Status* malformed) {
  grpc::ByteBuffer bytes;
  bool is_own = false;
  grpc::SerializationTraits<v1::TunePlanRequest>::Serialize(request, &bytes, &is_own);
  grpc::CompletionQueue queue;
  const auto succeeds = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = grpc::GenericStub(channel).PrepareCall(context, "/voxserve.v1.AdminService/TunePlan", &queue);
  call->StartCall(nullptr);
  bool goes_on = succeeds();
  if (goes_on) {
    call->WriteLast(bytes, grpc::WriteOptions(), nullptr);
    goes_on = succeeds();
  }
  while (goes_on) {
    call->Read(&bytes, nullptr);
    goes_on = succeeds();
    if (!goes_on || !malformed->ok()) continue;
    v1::TunePlanUpdate update;
    if (grpc::SerializationTraits<v1::TunePlanUpdate>::Deserialize(&bytes, &update).ok()) {
      on_update(std::move(update));
    } else {
      *malformed = Malformed("bytes that are no TunePlanUpdate");
      context->TryCancel();
    }
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  succeeds();
  return status;
}

}  // namespace

class Client::Impl {
 public:
  explicit Impl(std::shared_ptr<Channels> channels) : channels_(std::move(channels)) {
    for (const std::shared_ptr<grpc::Channel>& channel : channels_->all()) {
      shards_.push_back({channel, v1::InferenceService::NewStub(channel)});
    }
    if (channels_->admin() != nullptr) admin_ = v1::AdminService::NewStub(channels_->admin());
    health_ = grpc::health::v1::Health::NewStub(shards_.front().channel);
  }

  ~Impl() { calls_.CancelAll(); }  // and calls_'s destructor waits

  const Options& options() const { return channels_->options(); }
  absl::Duration default_timeout() const { return channels_->options().default_timeout; }

  // Sends one cloud and reads the answer. Result: Segmentation, Detections or Answer.
  template <typename Result>
  absl::StatusOr<Result> Infer(const InferOptions& options, PointCloud cloud) {
    const absl::Time start = SteadyNow();
    const absl::Duration timeout = options.timeout.value_or(default_timeout());
    if (absl::Status status = CheckRequest(options, cloud, timeout); !status.ok()) return status;
    const Asked asked = AskedOf(options, cloud);
    const v1::InferRequest request = MakeRequest(options, std::move(cloud));
    v1::InferResponse response;
    CallContext context(*channels_, timeout);
    const Shard& shard = NextShard();
    const grpc::Status status = shard.stub->Infer(&context, request, &response);
    if (!status.ok()) return channels_->Explain(status, *shard.channel, timeout);
    return FromResponse<Result>(std::move(response), asked, start);
  }

  template <typename Result>
  void InferAsync(const InferOptions& options, PointCloud cloud, std::function<void(absl::StatusOr<Result>)> done) {
    const absl::Time start = SteadyNow();
    const absl::Duration timeout = options.timeout.value_or(default_timeout());
    if (absl::Status status = CheckRequest(options, cloud, timeout); !status.ok()) {
      done(std::move(status));
      return;
    }
    struct Messages {
      v1::InferRequest request;
      v1::InferResponse response;
    };
    const Asked asked = AskedOf(options, cloud);
    const std::shared_ptr<Messages> messages(
        new Messages{.request = MakeRequest(options, std::move(cloud)), .response = {}});
    CallContext* const context = calls_.Begin(*channels_, timeout);
    const Shard& shard = NextShard();
    shard.stub->async()->Infer(
        context, &messages->request, &messages->response,
        [this, messages, context, &shard, asked, timeout, start, done = std::move(done)](const grpc::Status& status) {
          if (status.ok()) {
            done(FromResponse<Result>(std::move(messages->response), asked, start));
          } else {
            done(channels_->Explain(status, *shard.channel, timeout));
          }
          calls_.End(context);
        });
  }

  template <typename Result>
  absl::StatusOr<std::unique_ptr<Stream>> OpenStream(const StreamOptions& options,
                                                     StreamCallbacksOf<Result> callbacks) {
    absl::StatusOr<std::unique_ptr<ReopeningStream>> calls =
        ReopeningStream::Open(channels_, options, Reading(std::move(callbacks)));
    if (!calls.ok()) return calls.status();
    return std::unique_ptr<Stream>(new Stream(*std::move(calls)));
  }

  absl::StatusOr<std::vector<v1::ModelVersion>> ListModels() {
    v1::ListModelsResponse response;
    CallContext context(*channels_, default_timeout());
    const Shard& shard = NextShard();
    const grpc::Status status = shard.stub->ListModels(&context, v1::ListModelsRequest(), &response);
    if (!status.ok()) return channels_->Explain(status, *shard.channel, default_timeout());
    return std::vector<v1::ModelVersion>(response.models().begin(), response.models().end());
  }

  absl::StatusOr<v1::ModelVersion> GetModel(absl::string_view model, int64_t version) {
    v1::GetModelRequest request;
    request.set_model(std::string(model));
    request.set_version(version);
    v1::GetModelResponse response;
    CallContext context(*channels_, default_timeout());
    const Shard& shard = NextShard();
    const grpc::Status status = shard.stub->GetModel(&context, request, &response);
    if (!status.ok()) return channels_->Explain(status, *shard.channel, default_timeout());
    return response.model();
  }

  absl::StatusOr<v1::TunePlanResult> TunePlan(const TuneOptions& options,
                                              const std::function<void(const v1::TunePlanProgress&)>& on_progress) {
    if (options.model.empty()) return absl::InvalidArgumentError("the request names no model");
    if (absl::Status status = CheckAdminCall(options.timeout); !status.ok()) return status;
    v1::TunePlanRequest request;
    request.set_model(options.model);
    request.set_version(options.version);
    request.set_num_scans(options.num_scans);
    request.set_max_wait_seconds(absl::ToDoubleSeconds(options.max_wait));
    CallContext context(*channels_, options.timeout);
    std::optional<v1::TunePlanResult> result;
    const auto on_update = [&](v1::TunePlanUpdate update) {
      if (update.has_result()) result = std::move(*update.mutable_result());
      if (update.has_progress() && on_progress) on_progress(update.progress());
    };
    absl::Status malformed;
    const grpc::Status status = ReadTuneUpdates(channels_->admin(), request, &context, on_update, &malformed);
    if (!malformed.ok()) return malformed;
    if (!status.ok()) return channels_->Explain(status, *channels_->admin(), options.timeout);
    if (!result.has_value()) return Malformed("a search that ended without a result");
    return *std::move(result);
  }

  absl::StatusOr<std::vector<int64_t>> LoadModel(absl::string_view model, int64_t version, absl::Duration timeout) {
    return CallOfVersions<v1::LoadModelRequest, v1::LoadModelResponse>(&v1::AdminService::Stub::LoadModel, model,
                                                                       version, timeout);
  }

  absl::StatusOr<std::vector<int64_t>> UnloadModel(absl::string_view model, int64_t version, absl::Duration timeout) {
    return CallOfVersions<v1::UnloadModelRequest, v1::UnloadModelResponse>(&v1::AdminService::Stub::UnloadModel, model,
                                                                           version, timeout);
  }

  absl::StatusOr<Health> CheckHealth(absl::Duration timeout) {
    grpc::health::v1::HealthCheckResponse response;
    CallContext context(*channels_, timeout);
    const grpc::Status status = health_->Check(&context, grpc::health::v1::HealthCheckRequest(), &response);
    if (!status.ok()) return channels_->Explain(status, *shards_.front().channel, timeout);
    return response.status() == grpc::health::v1::HealthCheckResponse::SERVING ? Health::kServing : Health::kNotServing;
  }

 private:
  struct Shard {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::InferenceService::Stub> stub;
  };

  absl::Status CheckRequest(const InferOptions& options, const PointCloud& cloud, absl::Duration timeout) const {
    if (options.model.empty()) return absl::InvalidArgumentError("the request names no model");
    if (absl::Status status = CheckTimeout(timeout); !status.ok()) return status;
    return channels_->CheckSize(cloud);
  }

  absl::Status CheckAdminCall(absl::Duration timeout) const {
    if (admin_ == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("admin_address is needed: none follows from the address ", channels_->options().address));
    }
    return CheckTimeout(timeout);
  }

  template <typename Request, typename Response>
  absl::StatusOr<std::vector<int64_t>> CallOfVersions(
      grpc::Status (v1::AdminService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
      absl::string_view model, int64_t version, absl::Duration timeout) {
    if (absl::Status status = CheckAdminCall(timeout); !status.ok()) return status;
    Request request;
    request.set_model(std::string(model));
    request.set_version(version);
    Response response;
    CallContext context(*channels_, timeout);
    const grpc::Status status = (admin_.get()->*method)(&context, request, &response);
    if (!status.ok()) return channels_->Explain(status, *channels_->admin(), timeout);
    return std::vector<int64_t>(response.versions().begin(), response.versions().end());
  }

  const Shard& NextShard() { return shards_[channels_->NextIndex()]; }

  const std::shared_ptr<Channels> channels_;
  std::vector<Shard> shards_;                      // constant after construction
  std::unique_ptr<v1::AdminService::Stub> admin_;  // null: the address of the admin service is not known
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
  CallsInFlight calls_;  // last: it waits for calls that use the others
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(Options options) {
  absl::StatusOr<std::shared_ptr<Channels>> channels = Channels::Create(std::move(options));
  if (!channels.ok()) return channels.status();
  return std::unique_ptr<Client>(new Client(std::make_unique<Impl>(*std::move(channels))));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<Segmentation> Client::Infer(const InferOptions& options, PointCloud cloud) {
  return impl_->Infer<Segmentation>(options, std::move(cloud));
}

absl::StatusOr<Detections> Client::Detect(const InferOptions& options, PointCloud cloud) {
  if (absl::Status status = RefuseScores(options.return_scores); !status.ok()) return status;
  return impl_->Infer<Detections>(options, std::move(cloud));
}

absl::StatusOr<Answer> Client::InferTensors(const InferOptions& options, PointCloud cloud) {
  if (absl::Status status = RefuseScores(options.return_scores); !status.ok()) return status;
  return impl_->Infer<Answer>(options, std::move(cloud));
}

void Client::InferAsync(const InferOptions& options, PointCloud cloud,
                        std::function<void(absl::StatusOr<Segmentation>)> done) {
  impl_->InferAsync<Segmentation>(options, std::move(cloud), std::move(done));
}

void Client::DetectAsync(const InferOptions& options, PointCloud cloud,
                         std::function<void(absl::StatusOr<Detections>)> done) {
  if (absl::Status status = RefuseScores(options.return_scores); !status.ok()) return done(std::move(status));
  impl_->InferAsync<Detections>(options, std::move(cloud), std::move(done));
}

absl::StatusOr<std::unique_ptr<Stream>> Client::OpenStream(const StreamOptions& options, StreamCallbacks callbacks) {
  return impl_->OpenStream(options, std::move(callbacks));
}

absl::StatusOr<std::unique_ptr<Stream>> Client::OpenDetectionStream(const StreamOptions& options,
                                                                    DetectionStreamCallbacks callbacks) {
  if (absl::Status status = RefuseScores(options.return_scores); !status.ok()) return status;
  return impl_->OpenStream(options, std::move(callbacks));
}

absl::StatusOr<std::unique_ptr<Stream>> Client::OpenTensorStream(const StreamOptions& options,
                                                                 StreamCallbacksOf<Answer> callbacks) {
  if (absl::Status status = RefuseScores(options.return_scores); !status.ok()) return status;
  return impl_->OpenStream(options, std::move(callbacks));
}

absl::StatusOr<std::vector<v1::ModelVersion>> Client::ListModels() { return impl_->ListModels(); }

absl::StatusOr<v1::ModelVersion> Client::GetModel(absl::string_view model, int64_t version) {
  return impl_->GetModel(model, version);
}

absl::StatusOr<std::vector<int64_t>> Client::LoadModel(absl::string_view model, int64_t version,
                                                       std::optional<absl::Duration> timeout) {
  return impl_->LoadModel(model, version, timeout.value_or(impl_->default_timeout()));
}

absl::StatusOr<std::vector<int64_t>> Client::UnloadModel(absl::string_view model, int64_t version,
                                                         std::optional<absl::Duration> timeout) {
  return impl_->UnloadModel(model, version, timeout.value_or(impl_->default_timeout()));
}

absl::StatusOr<v1::TunePlanResult> Client::TunePlan(
    const TuneOptions& options, const std::function<void(const v1::TunePlanProgress&)>& on_progress) {
  return impl_->TunePlan(options, on_progress);
}

absl::StatusOr<Health> Client::CheckHealth(std::optional<absl::Duration> timeout) {
  return impl_->CheckHealth(timeout.value_or(impl_->default_timeout()));
}

const Options& Client::options() const { return impl_->options(); }

}  // namespace voxserve::client
