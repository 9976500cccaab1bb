#include "server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "server/http/listen_error.h"
#include "server/http/status_page.h"

namespace voxserve {
namespace {

// Health streams (Watch) never end by themselves; they get this long to see NOT_SERVING when everything is answered.
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(250);
constexpr absl::Duration kLoadPoll = absl::Milliseconds(10);
// A vehicle that drives out of coverage sends no FIN: its connection, and the tasks behind it, end after a minute.
constexpr int kKeepaliveTimeMs = 40'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
constexpr int kMinClientPingIntervalMs = 5'000;
// Of Infer, answers that have not left: those of a thousand scans a second to clients that take seconds to read.
constexpr int64_t kMaxUnsentAnswers = 4096;
// InferStream calls: vehicles.
constexpr int64_t kMaxStreams = 1024;

void LogLoaded(const std::vector<ModelVersionInfo>& models) {
  std::vector<std::string> ready;
  std::vector<std::string> failed;
  for (const ModelVersionInfo& model : models) {
    const std::string name = absl::StrCat(model.name, "/", model.version);
    (model.state == ModelState::kReady ? ready : failed).push_back(name);
  }
  Log(ready.empty() ? LogLevel::kError : LogLevel::kInfo, ready.empty() ? "no model is ready" : "models loaded",
      {{"ready", absl::StrJoin(ready, ",")}, {"failed", absl::StrJoin(failed, ",")}});
}

}  // namespace

class Server::Observer final : public Metrics {
 public:
  explicit Observer(Readiness* readiness) : readiness_(readiness) {}

  void OnModelState(std::string_view model, int64_t version, bool ready) override {
    Metrics::OnModelState(model, version, ready);
    readiness_->OnModelState(model, version, ready);
  }

 private:
  Readiness* const readiness_;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options, const std::string& version,
                                                      const EngineFactory& make_engine) {
  auto server = std::unique_ptr<Server>(new Server(options, version));
  RETURN_IF_ERROR(server->StartEngine(make_engine));
  RETURN_IF_ERROR(server->StartGrpc());
  RETURN_IF_ERROR(server->StartHttp());
  server->load_watch_ = std::thread([raw = server.get()] { raw->WatchLoading(); });
  return server;
}

Server::Server(const Options& options, std::string version)
    : options_(options.Resolved()),
      version_(std::move(version)),
      started_(absl::Now()),
      memory_budget_(options_.BudgetBytes()),
      metrics_(std::make_unique<Observer>(&readiness_)) {}

Server::~Server() {
  stopping_.Notify();
  readiness_.SetDraining();
  http_.reset();
  readiness_.SetListener(nullptr);
  if (service_) service_->StartDraining();
  if (admin_) admin_->StartDraining();
  if (grpc_) {
    grpc_->Shutdown(absl::ToChronoTime(absl::Now()));
    grpc_->Wait();
    grpc_.reset();
  }
  if (load_watch_.joinable()) load_watch_.join();
}

absl::Status Server::StartEngine(const EngineFactory& make_engine) {
  ASSIGN_OR_RETURN(engine_, make_engine(metrics_.get(), &memory_budget_));
  metrics_->SetBuildInfo(version_, engine_->devices().starts_with("cuda") ? "cuda" : "cpu");
  return absl::OkStatus();
}

absl::Status Server::StartGrpc() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  service_ = std::make_unique<InferenceService>(
      InferenceService::Options{.max_response_bytes = options_.max_message_bytes,
                                .limits = {.max_answers = kMaxUnsentAnswers,
                                           .max_streams = kMaxStreams,
                                           .max_unsent_bytes = options_.grpc_memory_bytes,
                                           .max_frame_bytes = options_.max_queue_bytes}},
      engine_.get(), metrics_.get());
  admin_ = std::make_unique<AdminService>(engine_.get());

  grpc::ResourceQuota quota("voxserve");
  quota.Resize(static_cast<size_t>(options_.grpc_memory_bytes));
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options_.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options_.max_message_bytes));
  // A few compressed kilobytes can unpack to gigabytes: compressed requests get UNIMPLEMENTED.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // No bound on the calls of one connection: a client keeps those beyond it back, where their time runs out without an
  // early refusal and no metric counts them. Calls are bounded where they can be refused, by the engine's queues and by
  // CallLimits, and what gRPC itself keeps for those that are not complete by the quota.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinClientPingIntervalMs);
  builder.AddListeningPort(absl::StrCat(WithBrackets(options_.host), ":", options_.port),
                           grpc::InsecureServerCredentials(), &grpc_port_);
  builder.RegisterService(service_.get());
  builder.RegisterService(admin_.get());
  grpc_ = builder.BuildAndStart();
  if (grpc_ == nullptr || grpc_port_ == 0) return ListenError("gRPC", options_.host, options_.port, "port");

  readiness_.SetListener([health = grpc_->GetHealthCheckService()](const std::string& model, bool ready) {
    if (!model.empty()) return health->SetServingStatus(absl::StrCat("voxserve.model.", model), ready);
    health->SetServingStatus("", ready);
    health->SetServingStatus(v1::InferenceService::service_full_name(), ready);
  });
  return absl::OkStatus();
}

absl::Status Server::StartHttp() {
  ASSIGN_OR_RETURN(http_, HttpServer::Start({.host = options_.host, .port = options_.http_port},
                                            {.metrics =
                                                 [this] {
                                                   metrics_->SetHostMemory(memory_budget_);
                                                   return metrics_->Text();
                                                 },
                                             .readiness = [this] { return readiness_.Get(); },
                                             .status_page = [this] { return RenderStatusPage(); }}));
  return absl::OkStatus();
}

absl::Status Server::Drain(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  readiness_.SetDraining();
  service_->StartDraining();
  admin_->StartDraining();
  if (const int64_t unanswered = service_->AwaitAnswers(deadline); unanswered > 0) {
    return absl::DeadlineExceededError(absl::StrCat(unanswered, " accepted requests were not answered within ",
                                                    absl::FormatDuration(timeout), " (--drain_timeout)"));
  }
  engine_->Drain();
  grpc_->Shutdown(absl::ToChronoTime(absl::Now() + kShutdownGrace));
  return absl::OkStatus();
}

void Server::WatchLoading() {
  // Not WaitUntilLoaded: a server that is told to stop does not load the rest of its models first.
  while (!engine_->loaded()) {
    if (stopping_.WaitForNotificationWithTimeout(kLoadPoll)) return;
  }
  readiness_.SetLoaded();
  LogLoaded(engine_->ListModels());
}

CallLimits::Held Server::held() const { return service_->held(); }

std::string Server::RenderStatusPage() const {
  ServerStatus status;
  status.version = version_;
  status.devices = engine_->devices();
  status.grpc_address = absl::StrCat(WithBrackets(options_.host), ":", grpc_port_);
  status.uptime = absl::Now() - started_;
  status.readiness = readiness_.Get();
  status.device_statistics = metrics_->DeviceStatisticsByName();
  for (ModelVersionInfo& info : engine_->ListModels()) {
    ModelStatistics statistics = metrics_->StatisticsOf(info.name);
    status.models.push_back({std::move(info), std::move(statistics)});
  }
  return RenderHtml(status);
}

}  // namespace voxserve
