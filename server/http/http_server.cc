#include "server/http/http_server.h"

#include <fcntl.h>
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
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

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
// The page contains everything it needs, and only asks this server, to refresh itself.
constexpr char kPagePolicy[] =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:";

constexpr size_t kConnectionBytes = 16 << 10;  // for the request line and headers, and those of the answer
constexpr int kMaxAcceptsATurn = 64;
// Descriptors kept open for the time when the process runs out of them.
constexpr int kNumSpares = 8;
// Limits at such a time: descriptors freed for one new connection, and the pause before the next attempt.
constexpr int kMaxFreedForOne = 4;
constexpr std::chrono::milliseconds kAcceptPause{20};
constexpr std::chrono::seconds kLogInterval{10};

struct Answer {
  unsigned int code = MHD_HTTP_OK;
  const char* type = kPlainText;
  std::string body;
};

Answer Refusal(unsigned int code) {
  return {.code = code, .body = absl::StrCat("HTTP ", code, ": try /, /metrics, /healthz and /readyz\n")};
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
  if (answer.code == MHD_HTTP_METHOD_NOT_ALLOWED) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
  }
  const MHD_Result result = MHD_queue_response(connection, answer.code, response);
  MHD_destroy_response(response);
  return result;
}

}  // namespace

// A single thread accepts connections, runs the library (libmicrohttpd, without threads of its own) and closes
// connections. Only the library closes a connection's descriptor, on the same thread: this class shuts the socket down,
// and the library then sees its end.
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

  // Returns false if the library cannot start: no memory or no descriptor.
  bool Start() {
    // MHD_USE_ERROR_LOG is not set: the library would write to stderr and might wait for its reader.
    daemon_ = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET, 0, nullptr, nullptr, &Loop::OnRequest, this,
                               MHD_OPTION_NOTIFY_CONNECTION, &Loop::OnConnection, this,  //
                               MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionBytes,     //
                               MHD_OPTION_CONNECTION_LIMIT,                              //
                               static_cast<unsigned int>(options_.max_connections),      //
                               MHD_OPTION_END);
    if (daemon_ == nullptr || !wake_) return false;
    thread_ = std::thread([this] { Run(); });
    return true;
  }

  ~Loop() {
    stop_ = true;
    eventfd_write(wake_.get(), 1);
    if (thread_.joinable()) thread_.join();
    if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
  }

  int port() const { return PortOf(listeners_.front()); }

 private:
  using Time = HttpConnections::Time;

  static Time Now() { return std::chrono::steady_clock::now(); }

  // Answers as soon as the headers have arrived: the library does not read the body of an answered request.
  static MHD_Result OnRequest(void* self, MHD_Connection* connection, const char* url, const char* method,
                              const char* /*version*/, const char* /*upload*/, size_t* /*upload_size*/,
                              void** /*request*/) {
    try {
      return Send(AnswerTo(method, url, static_cast<Loop*>(self)->content_), connection);
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

  void Run() {
    const int served = MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    std::vector<pollfd> ready = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                 {.fd = served, .events = POLLIN, .revents = 0}};
    const size_t num_others = ready.size();
    while (!stop_) {
      ready.resize(num_others);
      if (Now() >= accepts_again_) {
        for (const Descriptor& listener : listeners_) {
          ready.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
        }
      }
      poll(ready.data(), ready.size(), WaitMs());
      MHD_run(daemon_);
      CloseExpired();
      KeepSpares();
      for (size_t i = num_others; i < ready.size(); ++i) {
        if (ready[i].revents != 0) AcceptFrom(ready[i].fd);
      }
    }
  }

  // Returns the time until the next timer, or -1 if there is none.
  int WaitMs() {
    MHD_UNSIGNED_LONG_LONG library_ms = 0;
    if (MHD_get_timeout(daemon_, &library_ms) == MHD_YES && library_ms == 0) return 0;
    Time next = Time::max();
    if (const auto* oldest = connections_.Oldest(); oldest != nullptr) next = ExpiryOf(*oldest);
    if (Now() < accepts_again_) next = std::min(next, accepts_again_);
    if (next == Time::max()) return -1;
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(next - Now());
    return static_cast<int>(std::clamp<int64_t>(wait.count(), 0, 60'000));
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
    if (any) MHD_run(daemon_);
  }

  static void ShutDown(HttpConnections::Connection* connection) {
    shutdown(connection->descriptor, SHUT_RDWR);
    connection->is_closing = true;
  }

  // Returns false if no connection can be closed.
  bool Evict() {
    HttpConnections::Connection* const evicted = connections_.OldestOfTheLargestClient();
    if (evicted == nullptr) return false;
    ShutDown(evicted);
    MHD_run(daemon_);  // closes the descriptor
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
      }  // Else this connection alone is broken.
    }
  }

  // Returns the descriptor, or -errno.
  int Accept(int listener, sockaddr* address, socklen_t* size) {
    for (int num_freed = 0;; ++num_freed) {
      const int descriptor = accept4(listener, address, size, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (descriptor >= 0) return descriptor;
      const int error = errno;
      if (!IsShortage(error)) return -error;
      // The system looks for a free descriptor before it looks for a connection, so there may be none to accept.
      pollfd waiting = {.fd = listener, .events = POLLIN, .revents = 0};
      if (poll(&waiting, 1, 0) == 0) return -EAGAIN;
      // Other threads may take the freed descriptor, so this tries several times.
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

  // Opens spare descriptors; probes use them when the process has no others left.
  void KeepSpares() {
    for (Descriptor& spare : spares_) {
      if (!spare) spare.Reset(fcntl(wake_.get(), F_DUPFD_CLOEXEC, 0));
    }
  }

  // If the request arrived with its connection, it is answered before the next connection is accepted, which so cannot
  // replace it.
  void Admit(int descriptor, const sockaddr* address, socklen_t size) {
    if (connections_.full()) Evict();
    arriving_ = connections_.Add(descriptor, address, Now());
    if (arriving_ == nullptr) {
      close(descriptor);
      return;
    }
    // On failure the library has closed the descriptor.
    if (MHD_add_connection(daemon_, descriptor, address, size) != MHD_YES) connections_.Remove(arriving_);
    MHD_run(daemon_);
  }

  const Options options_;
  const Content content_;
  const std::vector<Descriptor> listeners_;
  const Descriptor wake_;  // an eventfd: readable when the loop must stop
  std::atomic<bool> stop_{false};
  MHD_Daemon* daemon_ = nullptr;
  std::thread thread_;

  // Used by the thread only.
  HttpConnections connections_;
  HttpConnections::Connection* arriving_ = nullptr;  // set while the library takes the connection
  std::array<Descriptor, kNumSpares> spares_;
  Time accepts_again_ = Time::min();
  int64_t num_evicted_ = 0;  // since the last log line about it
  Time logs_again_ = Time::min();
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options, Content content) {
  absl::StatusOr<std::vector<Descriptor>> listeners = ListenOn(options.host, options.port);
  if (!listeners.ok()) {
    return ListenError("HTTP", options.host, options.port, "http_port", std::string(listeners.status().message()));
  }
  auto loop = std::make_unique<Loop>(options, std::move(content), *std::move(listeners));
  if (!loop->Start()) return absl::UnavailableError("cannot serve HTTP: no memory or no descriptors");
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(loop)));
}

HttpServer::HttpServer(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}

HttpServer::~HttpServer() = default;

int HttpServer::port() const { return loop_->port(); }

}  // namespace voxserve
