#include "server/server.h"

#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "engine/runtime/available_memory.h"
#include "server/http/status_page.h"
#include "server/open_inference/open_inference_service.h"
#include "server/services/services.h"
#include "server/sockets/listen.h"
#include "server/sockets/listen_error.h"
#include "server/sockets/peer.h"

namespace voxserve {
namespace {

// Health streams (Watch) never end by themselves. When all requests are answered, they get this time to receive
// NOT_SERVING.
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(250);
// In the first 1/kQueueShareOfDrain of a drain's time, queued requests still run. After that they are refused, so that
// their clients ask another server.
constexpr int kQueueShareOfDrain = 5;
constexpr absl::Duration kLoadPoll = absl::Milliseconds(10);
// The files of TLS and of tokens are read again once in this time. Comparing contents, rather than file times, also
// notices changed symbolic links and mounted Kubernetes secrets.
constexpr absl::Duration kReloadPeriod = absl::Seconds(1);
// The identities of open calls are looked at once in this time. So an identity that was taken back, or that has ended,
// serves no longer than a few seconds more.
constexpr absl::Duration kIdentityPeriod = absl::Seconds(5);
// The time from the refusal of a connection's certificate to the connection's end, for its calls to end.
constexpr absl::Duration kRefusedGrace = absl::Seconds(5);
// A vehicle that drives out of coverage sends no FIN: its connection, and the tasks behind it, end after a minute.
constexpr int kKeepaliveTimeMs = 40'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
// Clients may test a silent connection every two seconds.
constexpr int kMinClientPingIntervalMs = 1'000;
// The limits of calls and of streams for all clients together are this many times the limits for one client.
constexpr int64_t kCallShares = 16;
// A client may have at least this many calls of health and reflection, or as many as streams if that is more: each
// vehicle that streams may also watch the health.
constexpr int64_t kMinInfoCalls = 64;
// One client may hold 1/kByteShares of the bytes that all clients together may hold.
constexpr int64_t kByteShares = 4;
// The most bytes that gRPC reads at once. gRPC creates all calls of one read before it reports the first one, and its
// default of 4 MiB holds 30,000 calls.
constexpr int kMaxReadBytes = 128 << 10;
// The tokens (CallRate) for a call that is cancelled right after its request has arrived. It costs less than the whole
// token of a call without a request, since sending the request cost the client something too. So vehicles behind one
// address may cancel a thousand calls a second without end.
constexpr double kCancelledCallTokens = 0.1;
// The tokens for a call that is refused because the server drains, while the client waits for answers on the same
// connection. A client that retries too often must not lose these answers, so it may make 10,000 such calls and a
// thousand a second. A client that makes more would keep gRPC too busy to end the drain.
constexpr double kRefusedInDrainTokens = 0.1;
// A client that has too few tokens gets one for each kBytesAToken bytes that it has sent. An attacker sends some
// hundred bytes a call. A client whose deadlines pass while an overloaded server receives its scans is no attacker, and
// sends much more.
constexpr double kBytesAToken = 64 << 10;
// The tokens for a connection that is closed because gRPC's memory runs short. After the first one the client may
// connect again, since more than half of its tokens are left (CallRate::HasTokens); after a second one it has to wait.
constexpr double kLargeUploadTokens = 400;
// gRPC takes so many bytes of a call that nobody reads yet: its flow control's window (TransportFlowControl) while
// memory is plenty. A stream that is cancelled may leave them, whatever the size of its messages.
constexpr int64_t kWindowBytes = 16 << 20;
// So many stray bytes (StrayGuard) are no mistake. A client that sends headers that gRPC refuses leaves fewer.
constexpr int64_t kFloodBytes = 1 << 20;
// The administration port needs few connections, since there are few operators.
constexpr int64_t kMaxAdminConnections = 64;
// The time that a client has between its connection's first bytes and its HTTP/2 SETTINGS.
constexpr int kHandshakeTimeoutMs = 10'000;

// Returns the time in milliseconds, as gRPC's channel arguments have it. The largest int means for ever.
int Milliseconds(absl::Duration time) {
  constexpr int kForever = std::numeric_limits<int>::max();
  return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(time), kForever));
}

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
  RETURN_IF_ERROR(server->ReadIdentities());
  RETURN_IF_ERROR(server->Listen());
  RETURN_IF_ERROR(server->StartEngine(make_engine));
  RETURN_IF_ERROR(server->StartGrpc());
  RETURN_IF_ERROR(server->StartHttp());
  server->StartReloading();
  server->load_watch_ =
      std::make_unique<PeriodicThread>(absl::ZeroDuration(), [raw = server.get()] { return raw->WatchLoading(); });
  return server;
}

Server::Server(const Options& options, std::string version)
    : options_(options.Resolved()),
      version_(std::move(version)),
      started_(SteadyNow()),
      memory_budget_(options_.BudgetBytes()),
      metrics_(std::make_unique<Observer>(&readiness_)) {}

Server::~Server() {
  load_watch_.reset();
  identity_watch_.reset();
  reload_.reset();
  readiness_.SetDraining();
  http_.reset();
  readiness_.SetListener(nullptr);
  if (services_) services_->StartDraining();
  StopAccepting();
  for (grpc::Server* server : {grpc_.get(), admin_grpc_.get()}) {
    if (server != nullptr) server->Shutdown(std::chrono::system_clock::now());
  }
  for (grpc::Server* server : {grpc_.get(), admin_grpc_.get()}) {
    if (server != nullptr) server->Wait();
  }
  flood_guard_.reset();
  upload_guard_.reset();
  stray_guard_.reset();
  grpc_.reset();
  admin_grpc_.reset();
  for (Acceptor* acceptor : Acceptors()) {
    if (acceptor != nullptr) acceptor->EndThread();  // its hooks use services_
  }
  services_.reset();  // its timers may still close connections
  acceptor_.reset();
  admin_acceptor_.reset();
}

absl::Status Server::ReadIdentities() {
  if (options_.tls.enabled()) {
    ASSIGN_OR_RETURN(tls_, TlsCertificates::Create(options_.tls));
    if (tls_->asks_clients()) client_certificates_ = std::make_unique<ClientCertificates>(tls_.get());
  }
  if (!options_.auth_tokens.empty()) {
    ASSIGN_OR_RETURN(authoriser_, Authoriser::Create(options_.auth_tokens));
  }
  return absl::OkStatus();
}

void Server::StartReloading() {
  if (tls_ == nullptr && authoriser_ == nullptr) return;
  reload_ = std::make_unique<PeriodicThread>(absl::ZeroDuration(), [this] {
    ReadIdentitiesAgain();
    return kReloadPeriod;
  });
  // A file system that does not answer holds up the thread above alone.
  identity_watch_ = std::make_unique<PeriodicThread>(kReloadPeriod, [this] {
    LookAtIdentities();
    return kReloadPeriod;
  });
}

void Server::ReadIdentitiesAgain() {
  if (tls_ != nullptr) {
    tls_->Refresh();
    metrics_->SetCertificateEnd("tls_certificate", tls_->certificate_end());
    metrics_->SetCertificateEnd("tls_client_ca", tls_->client_roots_end());
  }
  if (authoriser_ != nullptr) authoriser_->Refresh();
}

void Server::LookAtIdentities() {
  if (const absl::Time now = SteadyNow(); now >= next_look_) {
    services_->LookAtIdentities();
    next_look_ = now + kIdentityPeriod;
  }
  CloseRefused();
}

absl::Status Server::StartEngine(const EngineFactory& make_engine) {
  ASSIGN_OR_RETURN(engine_, make_engine(metrics_.get(), &memory_budget_));
  metrics_->SetBuildInfo(version_, engine_->devices().starts_with("cuda") ? "cuda" : "cpu");
  return absl::OkStatus();
}

Services::Options Server::ServicesOptions() {
  const int64_t max_client_info_calls = std::max(kMinInfoCalls, options_.max_client_streams);
  Services::Options options{.calls = {.max_calls = kCallShares * options_.max_client_calls,
                                      .max_client_calls = options_.max_client_calls,
                                      .max_info_calls = kCallShares * max_client_info_calls,
                                      .max_client_info_calls = max_client_info_calls,
                                      .max_streams = kCallShares * options_.max_client_streams,
                                      .max_client_streams = options_.max_client_streams},
                            .max_message_bytes = options_.max_message_bytes,
                            .shared_memory_prefix = options_.shared_memory_prefix,
                            .version = version_,
                            .authoriser = authoriser_.get(),
                            .client_certificates = client_certificates_.get()};
  options.times.request = options_.request_timeout;
  options.times.answer = options_.answer_timeout;
  options.times.silence = options_.stream_idle_timeout;
  options.times.config = std::min(options.times.config, options_.stream_idle_timeout);
  options.bytes.budget = &memory_budget_;
  options.bytes.max_client_bytes = options_.BudgetBytes() / 2 / kByteShares;  // half of it is for data that waits
  options.bytes.max_bytes[static_cast<size_t>(ByteKind::kAnswer)] = options_.grpc_memory_bytes;
  options.bytes.max_bytes[static_cast<size_t>(ByteKind::kFrame)] = options_.max_queue_bytes;
  // Sweeps may take half of the bytes that may wait: they stay as long as their streams, and must leave room for
  // requests.
  options.bytes.max_bytes[static_cast<size_t>(ByteKind::kSweep)] = options_.BudgetBytes() / 4;
  return options;
}

std::unique_ptr<grpc::Server> Server::BuildGrpc(
    grpc::CallbackGenericService* service,
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>* connections) const {
  grpc::ResourceQuota quota("voxserve");
  quota.Resize(static_cast<size_t>(options_.grpc_memory_bytes));
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options_.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(options_.max_message_bytes));
  // A few compressed kilobytes can unpack to gigabytes: compressed requests get UNIMPLEMENTED.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  // A client that follows HTTP/2 keeps calls beyond this number back. OpenCalls refuses them if a client does not.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(options_.max_client_calls));
  builder.AddChannelArgument(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, kMaxReadBytes);
  // 1.51's own limit. Later versions have a larger one, which this argument, unknown to 1.51, sets.
  builder.AddChannelArgument("grpc.absolute_max_metadata_size", static_cast<int>(StrayGuard::kCallBytes));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(options_.max_connection_idle));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, Milliseconds(options_.max_connection_age));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinClientPingIntervalMs);
  *connections = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      tls_ != nullptr ? tls_->NewGrpcCredentials() : grpc::InsecureServerCredentials());
  builder.RegisterCallbackGenericService(service);
  return builder.BuildAndStart();
}

absl::Status Server::Listen() {
  Acceptor::Options port{.host = options_.host,
                         .port = options_.port,
                         .max_connections = options_.max_connections,
                         .max_client_connections = options_.max_client_connections,
                         .trusted_proxies = *ParseNetworks(options_.trusted_proxies),  // Validate has checked it
                         .proxied_peers = &proxied_peers_,
                         .has_tls = tls_ != nullptr,
                         .is_welcome =
                             [this](const std::string& client) {
                               return useless_calls_.HasTokens(client) && penalties_.HasTokens(client) &&
                                      long_penalties_.HasTokens(client);
                             },
                         .idle_since = [this](const std::string& peer) { return services_->IdleSince(peer); },
                         .on_closed = [this](std::string_view why) { metrics_->OnCallEndedEarly(why); },
                         .on_unused = [this](std::string_view why) { metrics_->OnUnusedConnection(why); },
                         .on_gone = [this](const std::string& peer) { OnGone(peer); },
                         .on_open_connections = [this](int64_t open) { metrics_->OnConnections(open); }};
  ASSIGN_OR_RETURN(acceptor_, Acceptor::Listen(port));
  port.what = "administration";
  port.host_flag = "admin_host";
  port.port_flag = "admin_port";
  port.host = options_.admin_host;
  port.port = options_.admin_port;
  port.trusted_proxies.clear();
  port.max_connections = kMaxAdminConnections;
  port.max_client_connections = kMaxAdminConnections;
  port.on_open_connections = nullptr;
  ASSIGN_OR_RETURN(admin_acceptor_, Acceptor::Listen(port));
  // The HTTP server needs the engine, and listens after it.
  const absl::Status http = ListenOn(options_.host, options_.http_port).status();
  return http.ok() ? http
                   : ListenError("HTTP", options_.host, options_.http_port, "http_port", std::string(http.message()));
}

absl::Status Server::StartGrpc() {
  ConnectionObserver* const observer = this;
  services_ = std::make_unique<Services>(ServicesOptions(), engine_.get(), metrics_.get(), observer);

  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> admin_connections;
  grpc_ = BuildGrpc(services_->generic_service(), &connections);
  admin_grpc_ = BuildGrpc(services_->admin_service(), &admin_connections);
  if (grpc_ == nullptr || admin_grpc_ == nullptr) return absl::InternalError("the gRPC server did not start");
  readiness_.SetListener([this](const std::string& model, bool ready) {
    HealthService& health = services_->health();
    if (!model.empty()) return health.SetModelServing(model, ready);
    health.SetServing("", ready);
    health.SetServing(kInferenceServiceName, ready);
    health.SetServing(kOpenInferenceServiceName, ready);
  });
  StartGuards();
  acceptor_->Start(std::move(connections));
  admin_acceptor_->Start(std::move(admin_connections));
  return absl::OkStatus();
}

void Server::StartGuards() {
  flood_guard_ = std::make_unique<FloodGuard>(
      FloodGuard::Options{.resident_bytes = ResidentBytes,
                          .accounted_bytes = [this] { return memory_budget_.held(); },
                          .streams_started = StreamsStarted,
                          .on_flood = [this](const std::string& peer) { CloseFlooding(peer); }});
  const int64_t max_upload_bytes = options_.grpc_memory_bytes / 3 * 2;  // gRPC slows every upload down from 80% on
  const int64_t max_call_bytes = std::max(options_.max_message_bytes, kWindowBytes) + kMaxReadBytes;
  stray_guard_ = std::make_unique<StrayGuard>(
      StrayGuard::Options{.max_call_bytes = max_call_bytes,
                          .max_upload_bytes = max_upload_bytes,
                          // gRPC takes three bytes of memory for a byte of headers, so a client gets half.
                          .max_client_bytes = max_upload_bytes / 2,
                          .client_of = [this](const std::string& peer) { return proxied_peers_.ClientOf(peer); },
                          .reading =
                              [this](const std::string& peer) {
                                const ReadingCalls reading = services_->Reading(peer);
                                return StrayGuard::Reading{.uploads = reading.work, .small = reading.info};
                              },
                          .threads = [this] { return poller_threads_.UseSinceLastCall(); },
                          .on_flood = [this](const std::string& peer, int64_t bytes) { OnStrayBytes(peer, bytes); }});
  upload_guard_ = std::make_unique<UploadGuard>(
      UploadGuard::Options{.max_bytes = max_upload_bytes,
                           .max_client_bytes = std::max(options_.grpc_memory_bytes / kByteShares, max_call_bytes),
                           .max_call_bytes = max_call_bytes,
                           .traffic = [this] { return LookAtTraffic(); },
                           .client_of = [this](const std::string& peer) { return proxied_peers_.ClientOf(peer); },
                           .num_reading = [this](const std::string& peer) { return services_->Reading(peer).all(); },
                           .on_flood = [this](const std::string& peer) { OnLargeUpload(peer); }});
}

std::map<std::string, SocketTraffic> Server::LookAtTraffic() {
  stray_guard_->BeginLook();
  std::map<std::string, SocketTraffic> traffic = acceptor_->TakeTraffic();
  traffic.merge(admin_acceptor_->TakeTraffic());
  stray_guard_->Look(traffic, SteadyNow());
  return traffic;
}

std::string Server::SourceOf(const std::string& peer) const { return proxied_peers_.SourceOf(peer); }

bool Server::IsOpen(const std::string& peer) const { return acceptor_->IsOpen(peer) || admin_acceptor_->IsOpen(peer); }

void Server::OnCall(const std::string& peer) {
  for (Acceptor* acceptor : Acceptors()) acceptor->OnCall(peer);
  if (flood_guard_ != nullptr) flood_guard_->OnCall(peer);
  if (stray_guard_ != nullptr) stray_guard_->OnCall(peer);
}

void Server::OnMessage(const std::string& peer, int64_t bytes, bool is_first) {
  if (upload_guard_ != nullptr) upload_guard_->OnMessage(peer, bytes, is_first);
  if (stray_guard_ != nullptr) stray_guard_->OnMessage(peer, bytes);
}

void Server::OnUsed(const std::string& peer, absl::Time until) {
  for (Acceptor* acceptor : Acceptors()) acceptor->SetInUse(peer, until);
}

void Server::OnIdle(const std::string& peer) {
  if (upload_guard_ != nullptr) upload_guard_->OnIdle(peer);
}

void Server::OnRefusedCall(const std::string& peer, bool has_work) {
  if (useless_calls_.Spend(peer, has_work ? kRefusedInDrainTokens : 1)) return;
  Close(peer, connection_reason::kUnfinishedCalls);
}

void Server::OnUselessCall(const std::string& peer) { SpendTokens(peer, 1); }

void Server::OnCancelledCall(const std::string& peer) { SpendTokens(peer, kCancelledCallTokens); }

void Server::SpendTokens(const std::string& peer, double tokens) {
  const std::string client = proxied_peers_.ClientOf(peer);
  const bool is_paid = useless_calls_.Spend(client, tokens);
  if (is_paid && useless_calls_.HasTokens(client)) return;
  // With less than half of its tokens the client could not connect again, so it does not wait until it has none.
  absl::MutexLock lock(&earning_mutex_);  // so that a thread that finds no new bytes also finds the tokens for them
  int64_t received_bytes = 0;
  for (Acceptor* acceptor : Acceptors()) {
    received_bytes += acceptor->TakeReceivedBytes(peer);
  }
  useless_calls_.Earn(client, static_cast<double>(received_bytes) / kBytesAToken);
  if (!is_paid && !useless_calls_.Spend(client, tokens)) CloseFlooding(peer);
}

void Server::OnLargeUpload(const std::string& peer) {
  if (!Close(peer, connection_reason::kUnfinishedCalls)) return;
  penalties_.Spend(proxied_peers_.ClientOf(peer), kLargeUploadTokens);
}

void Server::OnStrayBytes(const std::string& peer, int64_t bytes) {
  const std::string client = proxied_peers_.ClientOf(peer);
  if (bytes >= kFloodBytes) {
    long_penalties_.SpendAll(client);
  } else {
    penalties_.Spend(client, kLargeUploadTokens);
  }
  if (!Close(peer, connection_reason::kStrayBytes)) acceptor_->Report(peer, connection_reason::kStrayBytes);
}

void Server::CloseFlooding(const std::string& peer) {
  penalties_.SpendAll(proxied_peers_.ClientOf(peer));
  Close(peer, connection_reason::kUnfinishedCalls);
}

void Server::OnRefusedCertificate(const std::string& peer) {
  absl::MutexLock lock(&refused_mutex_);
  refused_.emplace(peer, SteadyNow() + kRefusedGrace);
}

void Server::CloseRefused() {
  std::vector<std::string> due;
  {
    absl::MutexLock lock(&refused_mutex_);
    const absl::Time now = SteadyNow();
    for (const auto& [peer, when] : refused_) {
      if (when <= now) due.push_back(peer);
    }
  }
  for (const std::string& peer : due) {
    Close(peer, connection_reason::kCertificate);
    absl::MutexLock lock(&refused_mutex_);
    refused_.erase(peer);
  }
}

bool Server::Close(const std::string& peer, std::string_view reason) {
  bool is_closed = false;
  for (Acceptor* acceptor : Acceptors()) is_closed |= acceptor->Close(peer, reason);
  return is_closed;
}

void Server::StopAccepting() {
  for (Acceptor* acceptor : Acceptors()) {
    if (acceptor != nullptr) acceptor->Stop();
  }
}

absl::Status Server::StartHttp() {
  HttpServer::Content content{.metrics =
                                  [this] {
                                    metrics_->SetHostMemory(memory_budget_);
                                    return metrics_->Text();
                                  },
                              .readiness = [this] { return readiness_.Get(); },
                              .status_page = [this] { return RenderStatusPage(); },
                              .authorise = nullptr};
  if (authoriser_ != nullptr) {
    content.authorise = [this](std::optional<std::string_view> authorization) {
      return authoriser_->Admit(Access::kMetrics, authorization).status();
    };
  }
  ASSIGN_OR_RETURN(http_, HttpServer::Start({.host = options_.host, .port = options_.http_port, .tls = tls_.get()},
                                            std::move(content)));
  return absl::OkStatus();
}

absl::Status Server::Drain(absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  readiness_.SetDraining();
  services_->StartDraining();
  engine_->StopLoading();  // nobody will ask the models that it would bring
  if (services_->AwaitAnswers(SteadyNow() + timeout / kQueueShareOfDrain) > 0) {
    StopAccepting();
    engine_->RefuseQueued();
  }
  if (const int64_t unanswered = services_->AwaitAnswers(deadline); unanswered > 0) {
    return absl::DeadlineExceededError(absl::StrCat(unanswered, " accepted requests were not answered within ",
                                                    absl::FormatDuration(timeout), " (--drain_timeout)"));
  }
  engine_->Drain();
  StopAccepting();
  services_->AwaitUpdates(SteadyNow() + kShutdownGrace);  // EndAll cuts what gRPC has not yet written
  for (Acceptor* acceptor : Acceptors()) acceptor->EndAll();
  const auto end = std::chrono::system_clock::now() + absl::ToChronoMilliseconds(kShutdownGrace);
  for (grpc::Server* server : {grpc_.get(), admin_grpc_.get()}) server->Shutdown(end);
  return absl::OkStatus();
}

absl::Duration Server::WatchLoading() {
  // WaitUntilLoaded is not used, so that a server that is stopped does not load the rest of its models first.
  if (!engine_->loaded()) return kLoadPoll;
  readiness_.SetLoaded();
  LogLoaded(engine_->ListModels());
  return absl::InfiniteDuration();
}

std::string Server::RenderStatusPage() const {
  ServerStatus status;
  status.version = version_;
  status.devices = engine_->devices();
  status.grpc_address = absl::StrCat(WithBrackets(options_.host), ":", grpc_port());
  status.uptime = SteadyNow() - started_;
  status.readiness = readiness_.Get();
  status.device_statistics = metrics_->DeviceStatisticsByName();
  for (ModelVersionInfo& info : engine_->ListModels()) {
    ModelStatistics statistics = metrics_->StatisticsOf(info.name);
    status.models.push_back({std::move(info), std::move(statistics)});
  }
  return RenderHtml(status);
}

}  // namespace voxserve
