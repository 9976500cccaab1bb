#include "server/http/http_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/sockets/listen_error.h"

namespace voxserve {
namespace {

constexpr char kPlainText[] = "text/plain; charset=utf-8";
constexpr char kMetricsText[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kHtml[] = "text/html; charset=utf-8";
// The page carries all it needs and asks this server alone for its own refresh.
constexpr char kPagePolicy[] =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:";

}  // namespace

struct HttpServer::Impl {
  httplib::Server server;
  std::thread thread;
  int port = 0;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options, Content content) {
  auto impl = std::make_unique<Impl>();
  httplib::Server& server = impl->server;
  server.new_task_queue = [threads = options.num_threads] { return new httplib::ThreadPool(threads); };
  server.set_keep_alive_max_count(1);
  server.set_keep_alive_timeout(1);  // of silence before the request, too
  server.set_read_timeout(std::chrono::seconds(2));
  server.set_write_timeout(std::chrono::seconds(5));
  server.set_payload_max_length(4096);
  server.set_default_headers({{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}});
  // cpp-httplib's default shares the port (SO_REUSEPORT): a second server would go unnoticed.
  server.set_socket_options([](int descriptor) {
    const int yes = 1;
    setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });

  server.Get("/metrics", [metrics = std::move(content.metrics)](const httplib::Request&, httplib::Response& response) {
    response.set_content(metrics(), kMetricsText);
  });
  server.Get("/healthz",
             [](const httplib::Request&, httplib::Response& response) { response.set_content("ok\n", kPlainText); });
  server.Get("/readyz",
             [readiness = std::move(content.readiness)](const httplib::Request&, httplib::Response& response) {
               const absl::Status status = readiness();
               response.status = status.ok() ? 200 : 503;
               response.set_content(status.ok() ? "ready\n" : absl::StrCat(status.message(), "\n"), kPlainText);
             });
  server.Get("/", [page = std::move(content.status_page)](const httplib::Request&, httplib::Response& response) {
    response.set_header("Content-Security-Policy", kPagePolicy);
    response.set_content(page(), kHtml);
  });
  server.set_error_handler([](const httplib::Request&, httplib::Response& response) {
    if (response.body.empty()) {
      response.set_content(absl::StrCat("HTTP ", response.status, ": here are /, /metrics, /healthz and /readyz\n"),
                           kPlainText);
    }
  });

  const std::string host = WithoutBrackets(options.host);
  if (options.port == 0) {
    impl->port = server.bind_to_any_port(host);
  } else {
    impl->port = server.bind_to_port(host, options.port) ? options.port : -1;
  }
  if (impl->port <= 0) return ListenError("HTTP", options.host, options.port, "http_port");

  impl->thread = std::thread([&server] { server.listen_after_bind(); });
  // stop() is a no-op before the loop runs: the destructor would wait for ever.
  while (!server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  impl_->server.stop();
  impl_->thread.join();
}

int HttpServer::port() const { return impl_->port; }

}  // namespace voxserve
