// The voxserve binary from outside: what it says, how it starts, how it ends.

#include "tests/integration/server_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/service_client.h"

namespace voxserve {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

constexpr char kModels[] = VOXSERVE_SOURCE_DIR "/deploy/models";
// Takes the demo's network a good part of a second: long enough to be in the middle of it.
constexpr int kManyPoints = 40'000;

class ServerProcessTest : public testing::Test {
 protected:
  void Start(std::vector<std::string> more_args = {}) {
    std::vector<std::string> args = {"--model_repository", kModels, "--port=0", "--http_port=0"};
    args.insert(args.end(), more_args.begin(), more_args.end());
    process_ = std::make_unique<ServerProcess>(args);
    const int port = process_->PortOf("grpc_port");
    ASSERT_GT(port, 0) << process_->stderr_text();
    client_ = std::make_unique<ServiceClient>(port);
    while (Get("/readyz") != "ready\n") absl::SleepFor(absl::Milliseconds(5));
  }

  std::string Get(const std::string& path) {
    const auto answer = httplib::Client("127.0.0.1", process_->PortOf("http_port")).Get(path);
    return answer ? answer->body : "";
  }

  // Starts requests, and returns when one runs and another waits.
  void KeepBusy() {
    for (int i = 0; i < 3; ++i) {
      calls_.emplace_back([this, i] {
        v1::InferResponse response;
        statuses_[i] = client_->Infer(RequestOf("minkunet", kManyPoints), &response, absl::Seconds(200));
      });
    }
    while (Get("/metrics").find("voxserve_queue_depth{model=\"minkunet\"} 2\n") == std::string::npos) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  void TearDown() override {
    for (std::thread& call : calls_) call.join();
  }

  std::unique_ptr<ServerProcess> process_;
  std::unique_ptr<ServiceClient> client_;
  std::vector<std::thread> calls_;
  grpc::Status statuses_[3];
};

TEST_F(ServerProcessTest, HelpGoesToStdout) {
  ServerProcess process({"--help"});
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_THAT(process.stdout_text(), HasSubstr("--model_repository"));
  EXPECT_EQ(process.stderr_text(), "");
}

TEST_F(ServerProcessTest, VersionIsOneLine) {
  ServerProcess process({"--version"});
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_THAT(process.stdout_text(), MatchesRegex("voxserve [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST_F(ServerProcessTest, ABadCommandLineIsOneLineAndStatusTwo) {
  const std::vector<std::vector<std::string>> command_lines = {
      {"--prot=1"}, {"--port=x", "--model_repository=m"}, {}, {"extra"}};
  for (const auto& args : command_lines) {
    ServerProcess process(args);
    EXPECT_EQ(process.Wait(), 2);
    const std::string text = process.stderr_text();
    EXPECT_THAT(text, HasSubstr("voxserve: "));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
}

TEST_F(ServerProcessTest, AMissingRepositoryIsNamed) {
  ServerProcess process({"--model_repository", "/no/such/folder", "--port=0", "--http_port=0"});
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_THAT(process.stderr_text(), HasSubstr("/no/such/folder"));
}

TEST_F(ServerProcessTest, ServesAndStopsOnEitherSignal) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Start();
    v1::InferResponse response;
    EXPECT_TRUE(client_->Infer(RequestOf("minkunet", 100), &response).ok());
    process_->Signal(signal);
    EXPECT_EQ(process_->Wait(), 0);
    EXPECT_THAT(process_->stderr_text(), HasSubstr("INFO stopped"));
  }
}

TEST_F(ServerProcessTest, SaysWhatItServesOnWhichPorts) {
  Start({"--log_level=debug", "--threads=1"});
  v1::InferRequest request = RequestOf("minkunet", 10);
  request.set_request_id("drive 7");
  v1::InferResponse response;
  EXPECT_TRUE(client_->Infer(request, &response).ok());
  EXPECT_THAT(process_->AwaitLine("INFO voxserve starts"), HasSubstr("threads=1"));
  EXPECT_THAT(process_->AwaitLine("INFO serving"), HasSubstr("devices=cpu backend=cpu"));
  EXPECT_THAT(process_->AwaitLine("INFO models loaded"), HasSubstr("ready=minkunet/1"));
  const std::string answered = process_->AwaitLine("DEBUG answered");
  EXPECT_THAT(answered, HasSubstr("model=minkunet version=1 points=10"));
  EXPECT_THAT(answered, HasSubstr("request_id=\"drive 7\""));
  EXPECT_THAT(answered, HasSubstr("peer=ipv4:127.0.0.1:"));
  request.set_model("no\nbody");
  EXPECT_FALSE(client_->Infer(request, &response).ok());
  const std::string refused = process_->AwaitLine("INFO not answered");
  EXPECT_THAT(refused, HasSubstr("model=\"no\\nbody\"")) << "one line, whatever clients send";
  EXPECT_THAT(refused, HasSubstr("code=NOT_FOUND reason=MODEL_NOT_FOUND"));
}

TEST_F(ServerProcessTest, SigtermAnswersWhatWasAccepted) {
  Start();
  KeepBusy();
  process_->Signal(SIGTERM);
  EXPECT_NE(process_->AwaitLine("INFO draining"), "");
  while (Get("/readyz") != "draining\n") absl::SleepFor(absl::Milliseconds(1));
  v1::InferResponse response;
  const grpc::Status late = client_->Infer(RequestOf("minkunet", 10), &response);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(late), "DRAINING");
  EXPECT_EQ(process_->Wait(), 0);
  for (std::thread& call : calls_) call.join();
  calls_.clear();
  for (const grpc::Status& status : statuses_) EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ServerProcessTest, ASecondSignalEndsAtOnce) {
  Start();
  KeepBusy();
  process_->Signal(SIGTERM);
  ASSERT_NE(process_->AwaitLine("INFO draining"), "");
  process_->Signal(SIGINT);
  EXPECT_EQ(process_->Wait(), 128 + SIGINT);
}

TEST_F(ServerProcessTest, ADrainThatTakesTooLongIsAFailure) {
  Start({"--drain_timeout=1ms"});
  KeepBusy();
  process_->Signal(SIGTERM);
  EXPECT_EQ(process_->Wait(), 1);
  EXPECT_THAT(process_->stderr_text(), HasSubstr("3 accepted requests were not answered within 1ms"));
}

TEST_F(ServerProcessTest, OnePortServesOneServer) {
  Start();
  for (const char* name : {"grpc_port", "http_port"}) {
    const std::string flag = std::string(name) == "grpc_port" ? "port" : "http_port";
    const std::string other = flag == "port" ? "--http_port=0" : "--port=0";
    const int port = process_->PortOf(name);
    ServerProcess second({"--model_repository", kModels, absl::StrCat("--", flag, "=", port), other});
    EXPECT_EQ(second.Wait(), 1);
    EXPECT_THAT(second.stderr_text(), HasSubstr(absl::StrCat("127.0.0.1:", port, ": Address already in use")));
  }
}

}  // namespace
}  // namespace voxserve
