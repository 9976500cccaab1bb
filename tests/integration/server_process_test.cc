// Tests the voxserve binary from outside: its output, its start and its end.

#include "tests/integration/server_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/integration/service_client.h"
#include "tests/support/await_true.h"
#include "tests/support/paths.h"
#include "tests/support/raw_connection.h"

namespace voxserve::server_process_test {
namespace {

using testing::AnyOf;
using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

std::string Models() { return support::SourceDir() + "/deploy/models"; }
// The demonstration network takes more than a second for these points on one thread, so a test can act while it runs.
constexpr int kManyPoints = 60'000;
constexpr int kNumCalls = 3;
constexpr int kLooks = 20;  // KeepBusy asks for the queue's depth this many times in a row.

class ServerProcessTest : public testing::Test {
 protected:
  void Start(std::vector<std::string> more_args = {}) {
    std::vector<std::string> args = {"--model_repository", Models(), "--port=0", "--http_port=0"};
    args.insert(args.end(), more_args.begin(), more_args.end());
    process_ = std::make_unique<ServerProcess>(args);
    const int port = process_->PortOf("grpc_port");
    ASSERT_GT(port, 0) << process_->stderr_text();
    client_ = std::make_unique<ServiceClient>(port);
    ASSERT_TRUE(support::AwaitTrue([this] { return Get("/readyz") == "ready\n"; })) << Get("/readyz");
  }

  std::string Get(const std::string& path) {
    const auto answer = httplib::Client("127.0.0.1", process_->PortOf("http_port")).Get(path);
    return answer ? answer->body : "";
  }

  // Starts kNumCalls requests and returns when one runs and the others wait. Starts again if a request ended before
  // that state was seen.
  void KeepBusy() {
    for (int attempt = 0; attempt < 5; ++attempt) {
      num_ended_ = 0;
      for (int i = 0; i < kNumCalls; ++i) {
        calls_.emplace_back([this, i] {
          v1::InferResponse response;
          statuses_[i] = client_->Infer(RequestOf("minkunet", kManyPoints), &response, absl::Seconds(100));
          ++num_ended_;
        });
      }
      // If two requests wait for several looks, the third runs. If they wait for one look only, the worker may be about
      // to take one of them.
      for (int num_seen = 0; num_ended_ == 0;) {
        const bool waits = Get("/metrics").find("voxserve_queue_depth{model=\"minkunet\"} 2\n") != std::string::npos;
        num_seen = waits ? num_seen + 1 : 0;
        if (num_seen == kLooks) return;
        absl::SleepFor(absl::Milliseconds(1));
      }
      JoinCalls();
    }
    FAIL() << "no request was seen to wait; the last: " << statuses_[0].error_message();
  }

  void JoinCalls() {
    for (std::thread& call : calls_) call.join();
    calls_.clear();
  }

  void TearDown() override { JoinCalls(); }

  std::unique_ptr<ServerProcess> process_;
  std::unique_ptr<ServiceClient> client_;
  std::vector<std::thread> calls_;
  grpc::Status statuses_[kNumCalls];
  std::atomic<int> num_ended_{0};
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
  EXPECT_THAT(process_->AwaitLine("INFO models loaded"), HasSubstr("ready=centerpoint/1,minkunet/1"));
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
  Start({"--threads=1", "--drain_timeout=5m"});  // so that a busy machine has time for the requests that wait
  ASSERT_NO_FATAL_FAILURE(KeepBusy());
  process_->Signal(SIGTERM);
  EXPECT_NE(process_->AwaitLine("INFO draining"), "");
  EXPECT_TRUE(support::AwaitTrue([this] { return Get("/readyz") != "ready\n"; }));
  v1::InferResponse response;
  const grpc::Status late = client_->Infer(RequestOf("minkunet", 10), &response);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(ReasonOf(late), AnyOf("DRAINING", "")) << "nobody is there any more where the drain was quicker";
  EXPECT_EQ(process_->Wait(), 0);
  JoinCalls();
  for (const grpc::Status& status : statuses_) EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(ServerProcessTest, ASecondSignalEndsAtOnce) {
  Start({"--threads=1"});
  ASSERT_NO_FATAL_FAILURE(KeepBusy());
  process_->Signal(SIGTERM);
  ASSERT_NE(process_->AwaitLine("INFO draining"), "");
  process_->Signal(SIGINT);
  EXPECT_EQ(process_->Wait(), 128 + SIGINT);
}

TEST_F(ServerProcessTest, ADrainThatTakesTooLongIsAFailure) {
  Start({"--threads=1", "--drain_timeout=1ms"});
  ASSERT_NO_FATAL_FAILURE(KeepBusy());
  process_->Signal(SIGTERM);
  EXPECT_EQ(process_->Wait(), 1);
  EXPECT_THAT(process_->stderr_text(), ContainsRegex("[1-3] accepted requests were not answered within 1ms"));
}

TEST_F(ServerProcessTest, AStuckBatchEndsTheProcessWithItsOwnStatus) {
  // The batch does end, but takes far longer than the time after which the server calls it stuck.
  Start({"--threads=1", "--stuck_batch_time=10ms", "--stuck_batch_factor=0", "--drain_timeout=100ms"});
  v1::InferResponse response;
  EXPECT_EQ(client_->Infer(RequestOf("minkunet", kManyPoints), &response, absl::Seconds(100)).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(process_->Wait(), 3);
  const std::string log = process_->stderr_text();
  EXPECT_THAT(log, ContainsRegex("ERROR a batch is stuck model=minkunet version=1 device=cpu requests=1 points=60000 "
                                 "predicted_ms=[0-9.e+]+ elapsed_ms=[0-9.]+\n"));
  EXPECT_THAT(log, HasSubstr("1 accepted requests were not answered within 100ms"));
}

TEST_F(ServerProcessTest, AStuckBatchThatEndsIsAnsweredFirst) {
  Start({"--threads=1", "--stuck_batch_time=10ms", "--stuck_batch_factor=0"});
  std::atomic<bool> has_ended{false};
  grpc::Status status;
  std::thread call([&] {
    v1::InferResponse response;
    status = client_->Infer(RequestOf("minkunet", kManyPoints), &response, absl::Seconds(100));
    has_ended = true;
  });
  EXPECT_NE(process_->AwaitLine("ERROR a batch is stuck"), "");
  EXPECT_NE(process_->AwaitLine("INFO draining"), "");
  std::string ready = Get("/readyz");
  while (ready == "ready\n" && !has_ended) ready = Get("/readyz");
  EXPECT_THAT(ready, AnyOf("draining\n", "")) << "nobody is there any more where the drain was quicker";
  EXPECT_EQ(process_->Wait(), 3);
  call.join();
  // The drain waits 5 seconds for the batch, which may take longer on a busy machine.
  if (process_->stderr_text().find("drain timed out") == std::string::npos) {
    EXPECT_TRUE(status.ok()) << status.error_message();
  } else {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  }
}

TEST_F(ServerProcessTest, NobodyWaitsForTheReaderOfStderr) {
  Start({"--log_level=debug", "--drain_timeout=5m"});
  process_->StopReadingStderr();
  // The log lines of these requests are several times as many bytes as a pipe holds.
  constexpr int kNumRequests = 1000;
  absl::Duration longest;
  for (int i = 0; i < kNumRequests; ++i) {
    const absl::Time start = absl::Now();
    v1::InferResponse response;
    const grpc::Status status = client_->Infer(RequestOf("minkunet", 10), &response);
    ASSERT_TRUE(status.ok()) << "request " << i << ": " << status.error_message();
    longest = std::max(longest, absl::Now() - start);
  }
  EXPECT_EQ(Get("/healthz"), "ok\n");
  const absl::Time start = absl::Now();
  process_->Signal(SIGTERM);
  EXPECT_EQ(process_->Wait(), 0);
  const absl::Duration took = absl::Now() - start;
  EXPECT_LT(took, absl::Seconds(80)) << "far below the drain's time";
  const std::string text = process_->stderr_text();
  const int64_t num_lines = std::count(text.begin(), text.end(), '\n');
  EXPECT_LT(num_lines, kNumRequests) << "the pipe was full";
  EXPECT_THAT(text, EndsWith("\n")) << "lines are whole";
  std::printf("%d answers, the longest took %s; SIGTERM took %s; %ld lines were in the pipe\n", kNumRequests,
              absl::FormatDuration(longest).c_str(), absl::FormatDuration(took).c_str(), num_lines);
}

TEST_F(ServerProcessTest, DrippingHttpClientsDoNotHoldTheEndUp) {
  Start({"--drain_timeout=5m"});
  const int port = process_->PortOf("http_port");
  std::vector<std::unique_ptr<RawConnection>> clients;
  for (int i = 0; i < 40; ++i) {
    clients.push_back(std::make_unique<RawConnection>(port));
    EXPECT_TRUE(clients.back()->Send("GET /metrics HTTP/1.1\r\nX: "));
  }
  std::atomic<bool> done{false};
  std::thread drip([&] {
    while (!done) {
      for (const auto& client : clients) client->Send("x");
      absl::SleepFor(absl::Milliseconds(50));
    }
  });
  const absl::Time start = absl::Now();
  EXPECT_EQ(Get("/healthz"), "ok\n");
  const absl::Time answered = absl::Now();
  EXPECT_LT(answered - start, absl::Seconds(2));
  process_->Signal(SIGTERM);
  EXPECT_EQ(process_->Wait(), 0);
  EXPECT_LT(absl::Now() - answered, absl::Seconds(80)) << "far below the drain's time";
  std::printf("/healthz took %s, SIGTERM %s\n", absl::FormatDuration(answered - start).c_str(),
              absl::FormatDuration(absl::Now() - answered).c_str());
  done = true;
  drip.join();
}

TEST_F(ServerProcessTest, AnAbortIsNotHeldUp) {
  Start();
  process_->Signal(SIGABRT);
  EXPECT_EQ(process_->Wait(), 128 + SIGABRT);
}

TEST_F(ServerProcessTest, OnePortServesOneServer) {
  Start();
  for (const char* name : {"grpc_port", "http_port"}) {
    const std::string flag = std::string(name) == "grpc_port" ? "port" : "http_port";
    const std::string other = flag == "port" ? "--http_port=0" : "--port=0";
    const int port = process_->PortOf(name);
    ServerProcess second({"--model_repository", Models(), absl::StrCat("--", flag, "=", port), other});
    EXPECT_EQ(second.Wait(), 1);
    EXPECT_THAT(second.stderr_text(), HasSubstr(absl::StrCat("127.0.0.1:", port, ": Address already in use")));
    EXPECT_THAT(second.stderr_text(), Not(AnyOf(HasSubstr("model ready"), HasSubstr("model broken"))))
        << "ports are taken before models are loaded";
  }
}

}  // namespace
}  // namespace voxserve::server_process_test
