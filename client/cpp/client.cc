#include "client/cpp/client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "voxserve/v1/admin.grpc.pb.h"
#include "voxserve/v1/inference.grpc.pb.h"

namespace voxserve::client {
namespace {

// gRPC checks a message's size with its framing; what the points leave for the rest of a request.
constexpr int64_t kEnvelopeBytes = 4096;

bool IsLoopback(absl::string_view address) {
  return absl::StartsWith(address, "localhost:") || absl::StartsWith(address, "127.") ||
         absl::StartsWith(address, "[::1]:");
}

std::shared_ptr<grpc::Channel> MakeChannel(const Options& options, int index) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  // Channels with equal arguments share a connection unless each has its own pool.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt("voxserve.channel", index);
  // A server that comes back is found within seconds: gRPC's own delays are 2 minutes between attempts, and 30 s
  // between look-ups of its name, of which each attempt makes one.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
  // A proxy from the environment cannot reach this machine's own address.
  if (IsLoopback(options.address)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments);
}

// "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:8500: Connection refused": its last words.
absl::string_view Cause(absl::string_view message) {
  const size_t colon = message.rfind(": ");
  return colon == absl::string_view::npos ? message : message.substr(colon + 2);
}

v1::InferRequest MakeRequest(const InferOptions& options, PointCloud cloud) {
  v1::InferRequest request;
  request.set_model(options.model);
  request.set_version(options.version);
  request.set_return_scores(options.return_scores);
  request.set_request_id(options.request_id);
  *request.mutable_cloud() = std::move(cloud);
  return request;
}

absl::Status Malformed(absl::string_view what) {
  return WithReason(absl::InternalError(absl::StrCat("the server's answer is malformed: ", what)), kMalformedResponse);
}

absl::StatusOr<Segmentation> FromResponse(v1::InferResponse response, uint64_t num_points, bool wants_scores) {
  const v1::Segmentation& answer = response.segmentation();
  const uint64_t width = answer.bytes_per_label();
  if (width != 1 && width != 2) return Malformed(absl::StrCat("labels of ", width, " bytes"));
  if (answer.labels().size() != num_points * width) {
    return Malformed(absl::StrCat(answer.labels().size(), " bytes of labels for ", num_points, " points"));
  }
  const uint64_t num_scores = wants_scores ? num_points * answer.num_classes() : 0;
  if (answer.scores().size() != num_scores * sizeof(float)) {
    return Malformed(absl::StrCat(answer.scores().size(), " bytes of scores for ", num_scores, " values"));
  }
  Segmentation result;
  result.model = std::move(*response.mutable_model());
  result.version = response.version();
  result.device = std::move(*response.mutable_device());
  result.request_id = std::move(*response.mutable_request_id());
  result.bytes_per_label = static_cast<int>(width);
  result.ignore_label = static_cast<uint16_t>(answer.ignore_label());
  result.num_classes = static_cast<int>(answer.num_classes());
  result.counts = response.counts();
  for (const v1::StageDuration& stage : response.stages()) {
    result.stages.push_back({stage.name(), absl::Microseconds(stage.microseconds())});
  }
  result.labels.resize(num_points);
  if (width == 2) {
    if (num_points > 0) std::memcpy(result.labels.data(), answer.labels().data(), answer.labels().size());
  } else {
    for (uint64_t i = 0; i < num_points; ++i) result.labels[i] = static_cast<uint8_t>(answer.labels()[i]);
  }
  result.scores.resize(num_scores);
  if (num_scores > 0) std::memcpy(result.scores.data(), answer.scores().data(), answer.scores().size());
  return result;
}

}  // namespace

absl::Status Options::Validate() const {
  if (address.empty()) return absl::InvalidArgumentError("address is empty; write host:port, e.g. localhost:8500");
  if (num_channels < 1 || num_channels > 256) {
    return absl::InvalidArgumentError(absl::StrCat("num_channels is ", num_channels, ", must be 1 to 256"));
  }
  if (max_message_bytes < 1 << 16 || max_message_bytes > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_message_bytes is ", max_message_bytes, ", must be 65536 to ", INT32_MAX));
  }
  if (default_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("default_timeout is ", absl::FormatDuration(default_timeout), ", must be positive"));
  }
  return absl::OkStatus();
}

class Client::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {
    for (int i = 0; i < options_.num_channels; ++i) {
      Shard& shard = shards_.emplace_back();
      shard.channel = MakeChannel(options_, i);
      shard.stub = v1::InferenceService::NewStub(shard.channel);
    }
    admin_ = v1::AdminService::NewStub(shards_.front().channel);
    health_ = grpc::health::v1::Health::NewStub(shards_.front().channel);
  }

  ~Impl() {
    absl::MutexLock lock(&mutex_);
    for (grpc::ClientContext* context : in_flight_) context->TryCancel();
    mutex_.Await(absl::Condition(
        +[](Impl* self) ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->in_flight_.empty(); }, this));
  }

  const Options& options() const { return options_; }

  absl::StatusOr<Segmentation> Infer(const InferOptions& options, PointCloud cloud) {
    const absl::Time start = absl::Now();
    const absl::Duration timeout = options.timeout.value_or(options_.default_timeout);
    if (absl::Status status = CheckRequest(options, cloud, timeout); !status.ok()) return status;
    const uint64_t num_points = cloud.num_points();
    const v1::InferRequest request = MakeRequest(options, std::move(cloud));
    v1::InferResponse response;
    grpc::ClientContext context;
    SetDeadline(timeout, &context);
    const Shard& shard = NextShard();
    const grpc::Status status = shard.stub->Infer(&context, request, &response);
    if (!status.ok()) return Explain(status, *shard.channel, timeout);
    return Finish(std::move(response), num_points, options.return_scores, start);
  }

  void InferAsync(const InferOptions& options, PointCloud cloud,
                  std::function<void(absl::StatusOr<Segmentation>)> done) {
    const absl::Time start = absl::Now();
    const absl::Duration timeout = options.timeout.value_or(options_.default_timeout);
    if (absl::Status status = CheckRequest(options, cloud, timeout); !status.ok()) {
      done(std::move(status));
      return;
    }
    struct Call {
      grpc::ClientContext context;
      v1::InferRequest request;
      v1::InferResponse response;
    };
    const auto call = std::make_shared<Call>();
    const uint64_t num_points = cloud.num_points();
    call->request = MakeRequest(options, std::move(cloud));
    SetDeadline(timeout, &call->context);
    {
      absl::MutexLock lock(&mutex_);
      in_flight_.insert(&call->context);
    }
    const Shard& shard = NextShard();
    shard.stub->async()->Infer(&call->context, &call->request, &call->response,
                               [this, call, &shard, num_points, timeout, start, wants_scores = options.return_scores,
                                done = std::move(done)](const grpc::Status& status) {
                                 if (status.ok()) {
                                   done(Finish(std::move(call->response), num_points, wants_scores, start));
                                 } else {
                                   done(Explain(status, *shard.channel, timeout));
                                 }
                                 // Last: from here on the client may be gone.
                                 absl::MutexLock lock(&mutex_);
                                 in_flight_.erase(&call->context);
                               });
  }

  absl::StatusOr<std::vector<v1::ModelVersion>> ListModels() {
    v1::ListModelsResponse response;
    grpc::ClientContext context;
    SetDeadline(options_.default_timeout, &context);
    const Shard& shard = NextShard();
    const grpc::Status status = shard.stub->ListModels(&context, v1::ListModelsRequest(), &response);
    if (!status.ok()) return Explain(status, *shard.channel, options_.default_timeout);
    return std::vector<v1::ModelVersion>(response.models().begin(), response.models().end());
  }

  absl::StatusOr<v1::ModelVersion> GetModel(absl::string_view model, int64_t version) {
    v1::GetModelRequest request;
    request.set_model(std::string(model));
    request.set_version(version);
    v1::GetModelResponse response;
    grpc::ClientContext context;
    SetDeadline(options_.default_timeout, &context);
    const Shard& shard = NextShard();
    const grpc::Status status = shard.stub->GetModel(&context, request, &response);
    if (!status.ok()) return Explain(status, *shard.channel, options_.default_timeout);
    return response.model();
  }

  absl::StatusOr<v1::TunePlanResult> TunePlan(const TuneOptions& options,
                                              const std::function<void(const v1::TunePlanProgress&)>& on_progress) {
    if (options.model.empty()) return absl::InvalidArgumentError("the request names no model");
    if (absl::Status status = CheckTimeout(options.timeout); !status.ok()) return status;
    v1::TunePlanRequest request;
    request.set_model(options.model);
    request.set_version(options.version);
    request.set_num_scans(options.num_scans);
    request.set_max_wait_seconds(absl::ToDoubleSeconds(options.max_wait));
    grpc::ClientContext context;
    SetDeadline(options.timeout, &context);
    const std::unique_ptr<grpc::ClientReader<v1::TunePlanUpdate>> reader = admin_->TunePlan(&context, request);
    std::optional<v1::TunePlanResult> result;
    v1::TunePlanUpdate update;
    while (reader->Read(&update)) {
      if (update.has_result()) result = std::move(*update.mutable_result());
      if (update.has_progress() && on_progress) on_progress(update.progress());
    }
    if (const grpc::Status status = reader->Finish(); !status.ok()) {
      return Explain(status, *shards_.front().channel, options.timeout);
    }
    if (!result.has_value()) return Malformed("a search that ended without a result");
    return *std::move(result);
  }

  absl::StatusOr<Health> CheckHealth(absl::Duration timeout) {
    grpc::health::v1::HealthCheckResponse response;
    grpc::ClientContext context;
    SetDeadline(timeout, &context);
    const grpc::Status status = health_->Check(&context, grpc::health::v1::HealthCheckRequest(), &response);
    if (!status.ok()) return Explain(status, *shards_.front().channel, timeout);
    return response.status() == grpc::health::v1::HealthCheckResponse::SERVING ? Health::kServing : Health::kNotServing;
  }

 private:
  struct Shard {
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::InferenceService::Stub> stub;
  };

  static absl::Status CheckTimeout(absl::Duration timeout) {
    if (timeout > absl::ZeroDuration()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("timeout is ", absl::FormatDuration(timeout), ", must be positive"));
  }

  absl::Status CheckRequest(const InferOptions& options, const PointCloud& cloud, absl::Duration timeout) const {
    if (options.model.empty()) return absl::InvalidArgumentError("the request names no model");
    if (absl::Status status = CheckTimeout(timeout); !status.ok()) return status;
    const int64_t bytes = static_cast<int64_t>(cloud.data().size());
    if (bytes > options_.max_message_bytes - kEnvelopeBytes) {
      return WithReason(
          absl::ResourceExhaustedError(absl::StrCat(
              "the cloud has ", bytes, " bytes, more than a message of ", options_.max_message_bytes,
              " holds; raise max_message_bytes here and --max_message_bytes of the server, or send fewer fields")),
          kMessageTooLarge);
    }
    return absl::OkStatus();
  }

  const Shard& NextShard() { return shards_[next_shard_.fetch_add(1, std::memory_order_relaxed) % shards_.size()]; }

  static void SetDeadline(absl::Duration timeout, grpc::ClientContext* context) {
    if (timeout < absl::InfiniteDuration()) {
      context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
    }
  }

  // Says what a status from gRPC itself, not from the server, means for the caller.
  absl::Status Explain(const grpc::Status& grpc_status, grpc::Channel& channel, absl::Duration timeout) const {
    absl::Status status = FromGrpcStatus(grpc_status);
    if (!ErrorReason(status).empty()) return status;
    const absl::string_view message = status.message();
    const bool connected = channel.GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
    if (absl::IsUnavailable(status)) {
      if (absl::StrContains(message, "failed to connect") || absl::StrContains(message, "DNS resolution") ||
          absl::StrContains(message, "onnection refused")) {
        return WithReason(
            absl::UnavailableError(absl::StrCat("no server at ", options_.address, " (", Cause(message), ")")),
            kNoServer);
      }
      return WithReason(
          absl::UnavailableError(absl::StrCat("lost the connection to ", options_.address, " (", message, ")")),
          kConnectionLost);
    }
    if (absl::IsDeadlineExceeded(status)) {
      return WithReason(
          absl::DeadlineExceededError(absl::StrCat(connected ? "no answer from " : "no connection to ",
                                                   options_.address, " within ", absl::FormatDuration(timeout))),
          kClientTimeout);
    }
    if (absl::IsResourceExhausted(status) && absl::StrContains(message, "larger than max")) {
      return WithReason(
          absl::ResourceExhaustedError(absl::StrCat(message, "; raise max_message_bytes of client and server")),
          kMessageTooLarge);
    }
    if (absl::IsUnimplemented(status)) {
      return absl::UnimplementedError(absl::StrCat("the server at ", options_.address,
                                                   " is not a voxserve server of this version (", message, ")"));
    }
    return status;
  }

  static absl::StatusOr<Segmentation> Finish(v1::InferResponse response, uint64_t num_points, bool wants_scores,
                                             absl::Time start) {
    absl::StatusOr<Segmentation> result = FromResponse(std::move(response), num_points, wants_scores);
    if (result.ok()) result->round_trip = absl::Now() - start;
    return result;
  }

  const Options options_;
  std::vector<Shard> shards_;  // constant after construction
  std::unique_ptr<v1::AdminService::Stub> admin_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
  std::atomic<uint64_t> next_shard_{0};
  absl::Mutex mutex_;
  absl::flat_hash_set<grpc::ClientContext*> in_flight_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<Client>> Client::Create(Options options) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  return std::unique_ptr<Client>(new Client(std::make_unique<Impl>(std::move(options))));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<Segmentation> Client::Infer(const InferOptions& options, PointCloud cloud) {
  return impl_->Infer(options, std::move(cloud));
}

void Client::InferAsync(const InferOptions& options, PointCloud cloud,
                        std::function<void(absl::StatusOr<Segmentation>)> done) {
  impl_->InferAsync(options, std::move(cloud), std::move(done));
}

absl::StatusOr<std::vector<v1::ModelVersion>> Client::ListModels() { return impl_->ListModels(); }

absl::StatusOr<v1::ModelVersion> Client::GetModel(absl::string_view model, int64_t version) {
  return impl_->GetModel(model, version);
}

absl::StatusOr<v1::TunePlanResult> Client::TunePlan(
    const TuneOptions& options, const std::function<void(const v1::TunePlanProgress&)>& on_progress) {
  return impl_->TunePlan(options, on_progress);
}

absl::StatusOr<Health> Client::CheckHealth(std::optional<absl::Duration> timeout) {
  return impl_->CheckHealth(timeout.value_or(impl_->options().default_timeout));
}

const Options& Client::options() const { return impl_->options(); }

}  // namespace voxserve::client
