#pragma once

// ServerTest is the fixture of tests that run a Server in this process, on free ports. It has gRPC clients of the
// server and functions that read the server's HTTP pages.

#include <gtest/gtest.h>
#include <httplib.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/server.h"
#include "tests/integration/service_client.h"
#include "tests/support/await_true.h"

namespace voxserve {

class ServerTest : public testing::Test {
 protected:
  // Starts the server and sets server_, client_ and admin_client_. Models may still be loading afterwards.
  void StartServer(Options options, const Server::EngineFactory& make_engine) {
    options.port = options.http_port = options.admin_port = 0;
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, "1.2.3", make_engine);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = std::make_unique<ServiceClient>(server_->grpc_port());
    admin_client_ = std::make_unique<ServiceClient>(server_->admin_port());
  }

  // Requests `path` over HTTP. Returns {status, body}, or {0, ""} without an answer.
  std::pair<int, std::string> Get(const std::string& path) const {
    const auto answer = httplib::Client("127.0.0.1", server_->http_port()).Get(path);
    return answer ? std::make_pair(answer->status, answer->body) : std::make_pair(0, std::string());
  }

  void AwaitReady() const {
    ASSERT_TRUE(support::AwaitTrue([this] { return Get("/readyz").first == 200; })) << Get("/readyz").second;
  }

  // Returns the value of a time series, e.g. `voxserve_frames_total{model="fake"}`, or -1 if the metrics page does not
  // have the series.
  double MetricOf(const std::string& series) const {
    const std::string text = absl::StrCat("\n", Get("/metrics").second);
    const size_t found = text.find(absl::StrCat("\n", series, " "));
    return found == std::string::npos ? -1 : std::stod(text.substr(found + series.size() + 2));
  }

  // Blocks until the time series has this value. Returns false after a minute.
  bool AwaitMetric(const std::string& series, double value) const {
    return support::AwaitTrue([&] { return MetricOf(series) == value; });
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<ServiceClient> client_;
  std::unique_ptr<ServiceClient> admin_client_;  // a client of the port on which the server serves AdminService
};

// Makes one Infer call on a thread of its own. `client` must outlive this object. The destructor waits for the call.
class AsyncInfer {
 public:
  AsyncInfer(ServiceClient* client, v1::InferRequest request, absl::Duration timeout = absl::Seconds(30)) {
    context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    thread_ = std::thread([this, client, request = std::move(request)] {
      status_ = client->inference->Infer(&context_, request, &response_);
    });
  }
  ~AsyncInfer() {
    if (thread_.joinable()) thread_.join();
  }

  void Cancel() { context_.TryCancel(); }
  // Blocks until the call has ended, and returns its status. response() and context() are valid afterwards.
  const grpc::Status& Wait() {
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  const v1::InferResponse& response() const { return response_; }
  const grpc::ClientContext& context() const { return context_; }

 private:
  grpc::ClientContext context_;
  v1::InferResponse response_;
  grpc::Status status_;
  std::thread thread_;
};

}  // namespace voxserve
