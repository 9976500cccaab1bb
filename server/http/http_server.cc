#include "server/http/http_server.h"

#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <microhttpd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/logging.h"
#include "server/http/http_connections.h"
#include "server/sockets/descriptor.h"
#include "server/sockets/listen.h"
#include "server/sockets/listen_error.h"

namespace voxserve {
namespace {

constexpr char kPlainText[] = "text/plain; charset=utf-8";
constexpr char kMetricsText[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kHtml[] = "text/html; charset=utf-8";
// The status page loads nothing from elsewhere. It only sends requests to this server, to refresh itself.
constexpr char kPagePolicy[] =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:";

constexpr size_t kConnectionBytes = 16 << 10;  // for the request line, the request's headers and the answer's headers
constexpr int kMaxAcceptsATurn = 64;
// Spare descriptors: they are kept open, and closed to accept a connection when the process has no other descriptors.
constexpr int kNumSpares = 8;
// The pause after a turn of the loop that found no memory.
constexpr std::chrono::milliseconds kMemoryPause{10};
// When the process has no descriptors: the most that are freed for one new connection, and the pause before the next
// attempt to accept.
constexpr int kMaxFreedForOne = 4;
constexpr std::chrono::milliseconds kAcceptPause{20};
constexpr std::chrono::seconds kLogInterval{10};
// The time from a connection's shutdown until it is closed.
constexpr std::chrono::seconds kCloseTime{1};
// The time from a failure with a new certificate until the next attempt.
constexpr std::chrono::seconds kCertificatePause{1};
// In every key exchange that is left a new key is made for the connection (forward secrecy), as in those of gRPC.
constexpr char kTlsPriorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA:+DHE-RSA";

struct Answer {
  unsigned int code = MHD_HTTP_OK;
  const char* type = kPlainText;
  std::string body;
};

Answer Refusal(unsigned int code) {
  return {.code = code, .body = absl::StrCat("HTTP ", code, ": try /, /metrics, /healthz and /readyz\n")};
}

Answer Refusal(const absl::Status& status) {
  const unsigned int code = absl::IsUnauthenticated(status) ? MHD_HTTP_UNAUTHORIZED : MHD_HTTP_FORBIDDEN;
  return {.code = code, .body = absl::StrCat("HTTP ", code, ": ", status.message(), "\n")};
}

Answer AnswerTo(std::string_view method, std::string_view path, const HttpServer::Content& content) {
  if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD) return Refusal(MHD_HTTP_METHOD_NOT_ALLOWED);
  if (path == "/metrics") return {.type = kMetricsText, .body = content.metrics()};
  if (path == "/healthz") return {.body = "ok\n"};
  if (path == "/") return {.type = kHtml, .body = content.status_page()};
  if (path != "/readyz") return Refusal(MHD_HTTP_NOT_FOUND);
  const absl::Status status = content.readiness();
  if (status.ok()) return {.body = "ready\n"};
  return {.code = MHD_HTTP_SERVICE_UNAVAILABLE, .body = absl::StrCat(status.message(), "\n")};
}

MHD_Result Send(const Answer& answer, MHD_Connection* connection) {
  // The library copies the bytes and does not write to them.
  MHD_Response* response =
      MHD_create_response_from_buffer(answer.body.size(), const_cast<char*>(answer.body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.type);
  MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  MHD_add_response_header(response, MHD_HTTP_HEADER_X_CONTENT_TYPE_OPTIONS, "nosniff");
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
  if (answer.type == kHtml) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_SECURITY_POLICY, kPagePolicy);
  }
  // RFC 6750, section 3: an answer 401 names the scheme.
  if (answer.code == MHD_HTTP_UNAUTHORIZED) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer realm=\"voxserve\"");
  }
  if (answer.code == MHD_HTTP_METHOD_NOT_ALLOWED) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  }
  const MHD_Result result = MHD_queue_response(connection, answer.code, response);
  MHD_destroy_response(response);
  return result;
}

// Returns true if the client has shown a certificate that is signed by one of the roots given to the connection's
// MHD_Daemon.
bool HasClientCertificate(MHD_Connection* connection) {
  const MHD_ConnectionInfo* const info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
  if (info == nullptr || info->tls_session == nullptr) return false;
  auto* const session = static_cast<gnutls_session_t>(info->tls_session);
  // A certificate whose purpose is only that of a server does not count. gRPC refuses it too.
  char purpose[] = GNUTLS_KP_TLS_WWW_CLIENT;
  gnutls_typed_vdata_st asked = {
      .type = GNUTLS_DT_KEY_PURPOSE_OID, .data = reinterpret_cast<unsigned char*>(purpose), .size = 0};
  unsigned int problems = 0;
  return gnutls_certificate_verify_peers(session, &asked, 1, &problems) == GNUTLS_E_SUCCESS && problems == 0;
}

// Returns the number of the request's authorization headers.
int NumAuthorizations(MHD_Connection* connection) {
  int number = 0;
  const auto count = [](void* to, MHD_ValueKind /*kind*/, const char* name, const char* /*value*/) {
    if (absl::EqualsIgnoreCase(name, MHD_HTTP_HEADER_AUTHORIZATION)) ++*static_cast<int*>(to);
    return MHD_YES;
  };
  MHD_get_connection_values(connection, MHD_HEADER_KIND, count, &number);
  return number;
}

bool IsProbe(std::string_view path) { return path == "/healthz" || path == "/readyz"; }

}  // namespace

// Loop owns the single thread of the HTTP server. The thread accepts connections, runs the library (libmicrohttpd,
// without threads of its own) and ends connections. Only the library closes a connection's descriptor: this class shuts
// the socket down, and the library, on the same thread, then sees the connection's end.
//
// An instance of the library reads its certificate when it starts. For a new certificate, Loop starts another instance,
// which takes all new connections. The old instance is stopped when the time of its last connection is over.
class HttpServer::Loop {
 public:
  Loop(const Options& options, Content content, std::vector<Descriptor> listeners)
      : options_(options),
        content_(std::move(content)),
        listeners_(std::move(listeners)),
        wake_(eventfd(0, EFD_CLOEXEC)),
        connections_(options.max_connections) {
    KeepSpares();
  }

  absl::Status Start() {
    if (options_.tls != nullptr && MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
      return absl::InvalidArgumentError("--tls_certificate: this machine's libmicrohttpd is without TLS");
    }
    library_ = StartLibrary();
    if (library_ == nullptr || !wake_) {
      if (options_.tls == nullptr) return absl::UnavailableError("cannot serve HTTP: no memory or no descriptors");
      return absl::InvalidArgumentError(
          "cannot serve HTTP: GnuTLS refuses the certificate, the key or the clients' roots (--tls_certificate, "
          "--tls_key, --tls_client_ca), or there is no memory or descriptor");
    }
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  ~Loop() {
    stop_ = true;
    eventfd_write(wake_.get(), 1);
    if (thread_.joinable()) thread_.join();
  }

  int port() const { return PortOf(listeners_.front()); }

 private:
  using Time = HttpConnections::Time;

  // An instance of the library, with the certificate with which it was started.
  struct Library {
    ~Library() {
      if (daemon != nullptr) MHD_stop_daemon(daemon);
    }

    MHD_Daemon* daemon = nullptr;
    std::shared_ptr<const TlsMaterial> tls;
    uint64_t tls_version = 0;
    Time ends = Time::max();  // set when another instance replaces this one: the time when this one is stopped
  };

  static Time Now() { return std::chrono::steady_clock::now(); }

  // Answers as soon as the headers have arrived: the library does not read the body of an answered request.
  static MHD_Result OnRequest(void* self, MHD_Connection* connection, const char* url, const char* method,
                              const char* /*version*/, const char* /*upload*/, size_t* /*upload_size*/,
                              void** /*request*/) {
    const auto* loop = static_cast<Loop*>(self);
    try {
      const bool must_show_certificate = loop->options_.tls != nullptr && loop->options_.tls->asks_clients();
      if (must_show_certificate && !IsProbe(url) && !HasClientCertificate(connection)) {
        return Send(
            {.code = MHD_HTTP_FORBIDDEN,
             .body = "HTTP 403: show a client certificate of --tls_client_ca; /healthz and /readyz need none\n"},
            connection);
      }
      if (loop->content_.authorise && !IsProbe(url)) {
        // If there are several headers, a proxy may have checked another one than this server would.
        if (NumAuthorizations(connection) > 1) {
          return Send(Refusal(absl::UnauthenticatedError("the request has several authorization headers: send one")),
                      connection);
        }
        const char* const header =
            MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
        const absl::Status status =
            loop->content_.authorise(header == nullptr ? std::nullopt : std::optional<std::string_view>(header));
        if (!status.ok()) return Send(Refusal(status), connection);
      }
      return Send(AnswerTo(method, url, loop->content_), connection);
    } catch (...) {
      return MHD_NO;  // No memory for the answer. C code cannot take an exception; the library closes the connection.
    }
  }

  static void OnConnection(void* self, MHD_Connection* /*connection*/, void** place,
                           MHD_ConnectionNotificationCode code) {
    auto* loop = static_cast<Loop*>(self);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      *place = loop->arriving_;
    } else {
      loop->connections_.Remove(static_cast<HttpConnections::Connection*>(*place));
    }
  }

  // Returns nullptr if the library cannot start: there is no memory or no descriptor, or GnuTLS refuses the
  // certificate.
  std::unique_ptr<Library> StartLibrary() {
    auto library = std::make_unique<Library>();
    unsigned int flags = MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET;
    std::vector<MHD_OptionItem> tls;
    if (options_.tls != nullptr) {
      library->tls_version = options_.tls->version();
      library->tls = options_.tls->material();
      flags |= MHD_USE_TLS;
      const auto add = [&tls](MHD_OPTION option, const char* text) {
        tls.push_back({.option = option, .value = 0, .ptr_value = const_cast<char*>(text)});
      };
      add(MHD_OPTION_HTTPS_MEM_CERT, library->tls->certificate.c_str());
      add(MHD_OPTION_HTTPS_MEM_KEY, library->tls->key.c_str());
      add(MHD_OPTION_HTTPS_PRIORITIES, kTlsPriorities);
      if (!library->tls->client_ca.empty()) add(MHD_OPTION_HTTPS_MEM_TRUST, library->tls->client_ca.c_str());
    }
    tls.push_back({.option = MHD_OPTION_END, .value = 0, .ptr_value = nullptr});
    // MHD_USE_ERROR_LOG is not set: the library would write to stderr and might wait for its reader.
    library->daemon = MHD_start_daemon(flags, 0, nullptr, nullptr, &Loop::OnRequest, this,       //
                                       MHD_OPTION_NOTIFY_CONNECTION, &Loop::OnConnection, this,  //
                                       MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionBytes,     //
                                       MHD_OPTION_CONNECTION_LIMIT,                              //
                                       static_cast<unsigned int>(options_.max_connections),      //
                                       MHD_OPTION_ARRAY, tls.data(),                             //
                                       MHD_OPTION_END);
    return library->daemon == nullptr ? nullptr : std::move(library);
  }

  // Starts an instance with the new certificate if the certificate has changed, and stops old instances whose time is
  // over. After a failure it tries again, since the process may only have lacked memory or descriptors.
  void ChangeCertificate() {
    while (!retired_.empty() && retired_.front()->ends <= Now()) retired_.erase(retired_.begin());
    if (options_.tls == nullptr || options_.tls->version() == library_->tls_version || Now() < changes_again_) return;
    std::unique_ptr<Library> next = StartLibrary();
    if (next == nullptr) {
      changes_again_ = Now() + kCertificatePause;
      if (std::exchange(refused_tls_version_, options_.tls->version()) == options_.tls->version()) return;
      Log(LogLevel::kWarning,
          "HTTP cannot use the new certificate, or has no memory or descriptor: the one before stays until it can");
      return;
    }
    library_->ends = Now() + absl::ToChronoMilliseconds(options_.connection_time) + kCloseTime;
    retired_.push_back(std::exchange(library_, std::move(next)));
  }

  static int DescriptorOf(const Library& library) {
    return MHD_get_daemon_info(library.daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
  }

  void RunLibraries() {
    for (const std::unique_ptr<Library>& library : retired_) MHD_run(library->daemon);
    MHD_run(library_->daemon);
  }

  void Run() {
    while (!stop_) {
      try {
        RunOnce();
      } catch (const std::bad_alloc&) {
        std::this_thread::sleep_for(kMemoryPause);  // Whoever waits is looked after then.
      }
    }
  }

  void RunOnce() {
    std::vector<pollfd> ready = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                 {.fd = DescriptorOf(*library_), .events = POLLIN, .revents = 0}};
    for (const std::unique_ptr<Library>& library : retired_) {
      ready.push_back({.fd = DescriptorOf(*library), .events = POLLIN, .revents = 0});
    }
    const size_t num_others = ready.size();
    if (Now() >= accepts_again_) {
      for (const Descriptor& listener : listeners_) {
        ready.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
      }
    }
    poll(ready.data(), ready.size(), WaitMs());
    RunLibraries();
    CloseExpired();
    ChangeCertificate();
    KeepSpares();
    for (size_t i = num_others; i < ready.size(); ++i) {
      if (ready[i].revents != 0) AcceptFrom(ready[i].fd);
    }
  }

  // Returns the milliseconds until the next thing to do at a set time, at most a minute, or -1 if there is none.
  int WaitMs() {
    if (HasWork(*library_)) return 0;
    Time next = Time::max();
    for (const std::unique_ptr<Library>& library : retired_) {
      if (HasWork(*library)) return 0;
      next = std::min(next, library->ends);
    }
    if (const auto* oldest = connections_.Oldest(); oldest != nullptr) next = std::min(next, ExpiryOf(*oldest));
    if (Now() < accepts_again_) next = std::min(next, accepts_again_);
    if (next == Time::max()) return -1;
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - Now());
    return static_cast<int>(std::clamp<int64_t>(wait.count(), 0, 60'000));
  }

  static bool HasWork(const Library& library) {
    MHD_UNSIGNED_LONG_LONG wait_ms = 0;
    return MHD_get_timeout(library.daemon, &wait_ms) == MHD_YES && wait_ms == 0;
  }

  Time ExpiryOf(const HttpConnections::Connection& connection) const {
    return connection.since + absl::ToChronoMilliseconds(options_.connection_time);
  }

  void CloseExpired() {
    bool any = false;
    for (auto* oldest = connections_.Oldest(); oldest != nullptr && ExpiryOf(*oldest) <= Now();
         oldest = connections_.Oldest()) {
      ShutDown(oldest);
      any = true;
    }
    if (any) RunLibraries();
  }

  static void ShutDown(HttpConnections::Connection* connection) {
    shutdown(connection->descriptor, SHUT_RDWR);
    connection->is_closing = true;
  }

  // Closes the oldest connection of the client with the most connections. Returns false if no connection is open.
  bool Evict() {
    HttpConnections::Connection* const evicted = connections_.OldestOfTheLargestClient();
    if (evicted == nullptr) return false;
    ShutDown(evicted);
    RunLibraries();  // closes the descriptor
    ++num_evicted_;
    if (Now() >= logs_again_) {
      Log(LogLevel::kWarning, "too many HTTP connections: the oldest are closed",
          {{"max_connections", options_.max_connections}, {"closed", std::exchange(num_evicted_, 0)}});
      logs_again_ = Now() + kLogInterval;
    }
    return true;
  }

  void AcceptFrom(int listener) {
    for (int i = 0; i < kMaxAcceptsATurn && !stop_; ++i) {
      sockaddr_storage address = {};
      socklen_t size = sizeof(address);
      auto* const peer = reinterpret_cast<sockaddr*>(&address);
      const int descriptor = Accept(listener, peer, &size);
      if (descriptor >= 0) {
        Admit(descriptor, peer, size);
      } else if (IsShortage(-descriptor)) {
        accepts_again_ = Now() + kAcceptPause;
        return;
      } else if (-descriptor == EAGAIN) {
        return;
      }  // With any other error only this connection is broken.
    }
  }

  // Accepts a connection, and frees descriptors for it if the process has none left. Returns the descriptor or -errno.
  int Accept(int listener, sockaddr* address, socklen_t* size) {
    for (int num_freed = 0;; ++num_freed) {
      const int descriptor = accept4(listener, address, size, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (descriptor >= 0) return descriptor;
      const int error = errno;
      if (!IsShortage(error)) return -error;
      // accept4 looks for a free descriptor before it looks for a connection, so perhaps no connection waits.
      pollfd waiting = {.fd = listener, .events = POLLIN, .revents = 0};
      if (poll(&waiting, 1, 0) == 0) return -EAGAIN;
      // Another thread may take the freed descriptor first, so this function tries several times.
      if (num_freed == kMaxFreedForOne || !FreeADescriptor()) return -error;
    }
  }

  static bool IsShortage(int error) {
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
  }

  bool FreeADescriptor() {
    for (Descriptor& spare : spares_) {
      if (!spare) continue;
      spare.Reset();
      return true;
    }
    return Evict();
  }

  // Opens the missing spare descriptors.
  void KeepSpares() {
    for (Descriptor& spare : spares_) {
      if (!spare) spare.Reset(fcntl(wake_.get(), F_DUPFD_CLOEXEC, 0));
    }
  }

  // Gives the connection to the library and runs the library once. If the request has arrived with the connection, it
  // is thus answered before another connection is accepted, which might evict this one.
  void Admit(int descriptor, const sockaddr* address, socklen_t size) {
    if (connections_.full()) Evict();
    arriving_ = connections_.Add(descriptor, address, Now());
    if (arriving_ == nullptr) {
      close(descriptor);
      return;
    }
    // On failure the library has closed the descriptor.
    if (MHD_add_connection(library_->daemon, descriptor, address, size) != MHD_YES) connections_.Remove(arriving_);
    MHD_run(library_->daemon);
  }

  const Options options_;
  const Content content_;
  const std::vector<Descriptor> listeners_;
  const Descriptor wake_;  // an eventfd: readable when the loop must stop
  std::atomic<bool> stop_{false};

  // From its start on, only the thread uses these members.
  HttpConnections connections_;
  Time changes_again_ = Time::min();
  uint64_t refused_tls_version_ = 0;                 // version of the last certificate that was refused
  std::unique_ptr<Library> library_;                 // takes new connections
  std::vector<std::unique_ptr<Library>> retired_;    // old instances, in the order of `ends`
  HttpConnections::Connection* arriving_ = nullptr;  // set while the library takes the connection
  std::array<Descriptor, kNumSpares> spares_;
  Time accepts_again_ = Time::min();
  int64_t num_evicted_ = 0;  // connections evicted since the last log line that tells their number
  Time logs_again_ = Time::min();

  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options, Content content) {
  absl::StatusOr<std::vector<Descriptor>> listeners = ListenOn(options.host, options.port);
  if (!listeners.ok()) {
    return ListenError("HTTP", options.host, options.port, "http_port", std::string(listeners.status().message()));
  }
  auto loop = std::make_unique<Loop>(options, std::move(content), *std::move(listeners));
  if (absl::Status status = loop->Start(); !status.ok()) return status;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(loop)));
}

HttpServer::HttpServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return loop_->port(); }

}  // namespace voxserve
