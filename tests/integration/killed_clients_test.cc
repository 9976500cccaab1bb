// Tests clients that are killed (kill -9 of voxserve-client) in the middle of their calls. The server must keep nothing
// of them.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/infer_stream_fixture.h"
#include "tests/integration/raw_tcp.h"
#include "tests/support/await_true.h"
#include "tests/support/paths.h"

extern char** environ;

namespace voxserve::killed_clients_test {
namespace {

constexpr int kNumPoints = 128 * 1024;
constexpr int64_t kScanBytes = int64_t{kNumPoints} * 16;

class ClientProcess {
 public:
  // Starts voxserve-client. `arguments` are separated by spaces, so no argument may contain a space.
  explicit ClientProcess(const std::string& arguments) {
    std::vector<std::string> words = absl::StrSplit(arguments, ' ');
    words.insert(words.begin(), support::BinaryDir() + "/client/cpp/voxserve-client");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
      posix_spawn_file_actions_addopen(&actions, descriptor, "/dev/null", O_WRONLY, 0);
    }
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) std::abort();
    posix_spawn_file_actions_destroy(&actions);
  }
  ~ClientProcess() { Kill(); }

  // Kills the client. Returns whether it was still running.
  bool Kill() {
    if (pid_ < 0) return false;
    kill(pid_, SIGKILL);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

 private:
  pid_t pid_ = -1;
};

class KilledClientsTest : public InferStreamTest {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / absl::StrCat("killed_clients_", getpid());
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "scan.bin", std::ios::binary) << std::string(kScanBytes, '\0');
    std::ofstream(folder_ / "poses.txt") << "1 0 0 0 0 1 0 0 0 0 1 0\n";
  }
  void TearDown() override {
    // If a test has failed before it resumed the engine, the server's end must not wait for the engine.
    if (engine_ != nullptr) engine_->Resume();
    std::filesystem::remove_all(folder_);
  }

  std::string Address(int port) const { return absl::StrCat("127.0.0.1:", port); }
  std::string Scan() const { return (folder_ / "scan.bin").string(); }
  // Returns the arguments of a benchmark that runs until it is killed.
  std::string Bench(const std::string& load) const {
    return absl::StrCat("bench --address ", Address(server_->grpc_port()),
                        " --model fake --duration 10m --timeout 10m ", load, " ", Scan());
  }

  void ExpectNothingIsLeft() {
    EXPECT_TRUE(support::AwaitTrue([this] {
      const Services::Held held = server_->held();
      return held.calls + held.streams + held.unsent_bytes + held.frame_bytes + held.sweep_bytes == 0;
    }));
    const Services::Held held = server_->held();
    EXPECT_EQ(held.calls, 0);
    EXPECT_EQ(held.streams, 0);
    EXPECT_EQ(held.unsent_bytes, 0);
    EXPECT_EQ(held.frame_bytes, 0);
    EXPECT_EQ(held.sweep_bytes, 0);
    EXPECT_TRUE(AwaitNoStreams());
    EXPECT_TRUE(support::AwaitTrue([this] { return engine_->IsIdle(); })) << "a task is still in the queue, or runs";
    // Where a sanitizer and other programs leave gRPC little time, it tells so late of a call that the call's bytes
    // count as stray. Their client, which has this test's address, may connect again after 50 s at most.
    EXPECT_TRUE(support::AwaitTrue(
        [this] {
          v1::InferResponse response;
          return client_->Infer(RequestOf("fake", 10), &response).ok();
        },
        absl::Seconds(100), absl::Milliseconds(200)));
    EXPECT_TRUE(server_->Drain(absl::Seconds(30)).ok());
  }

  std::filesystem::path folder_;
};

TEST_F(KilledClientsTest, InTheMiddleOfAnUpload) {
  Start();
  TcpProxy proxy(server_->grpc_port(), kScanBytes / 2);
  ClientProcess client(absl::StrCat("infer --address ", Address(proxy.port()), " --model fake ", Scan()));
  ASSERT_TRUE(proxy.AwaitUpload());
  EXPECT_TRUE(support::AwaitTrue([this] { return server_->held().calls == 1; }))
      << "a call is open from its headers on";
  EXPECT_TRUE(client.Kill());
  ExpectNothingIsLeft();
  EXPECT_EQ(engine_->num_started(), 1) << "the test's own";
}

TEST_F(KilledClientsTest, WhileRequestsWait) {
  constexpr int kCallers = 3;
  Start({.pause = FakeEngine::Pause::kBeforeStart});
  ClientProcess client(Bench(absl::StrCat("--concurrency ", kCallers)));
  ASSERT_TRUE(engine_->AwaitWaiting(kCallers));
  EXPECT_EQ(server_->held().calls, kCallers);
  EXPECT_TRUE(client.Kill());
  EXPECT_TRUE(engine_->AwaitCancelled(kCallers));
  engine_->Resume();
  ExpectNothingIsLeft();
  EXPECT_EQ(MetricOf(R"(voxserve_frames_dropped_total{model="fake",reason="cancelled"})"), kCallers);
  EXPECT_EQ(engine_->num_started(), 1) << "the test's own";
}

TEST_F(KilledClientsTest, WhileUploadsAnswersAndRefusalsAreUnderWay) {
  Start({.max_queue_requests = 2});
  for (int round = 0; round < 3; ++round) {
    const int64_t num_started = engine_->num_started();
    ClientProcess client(Bench("--concurrency 8"));
    ASSERT_TRUE(engine_->AwaitStarted(num_started + 20));
    EXPECT_TRUE(client.Kill());
  }
  ExpectNothingIsLeft();
}

TEST_F(KilledClientsTest, WithStreamsOfSweeps) {
  constexpr int kStreams = 2;
  for (const char* policy : {"latest", "queue"}) {
    Start({.pause = FakeEngine::Pause::kAfterStart});
    ClientProcess client(Bench(absl::StrCat("--streams ", kStreams, " --frame_rate 50 --policy ", policy,
                                            " --sweeps 3 --poses ", (folder_ / "poses.txt").string())));
    ASSERT_TRUE(engine_->AwaitStarted(1));
    // The sweeps' bytes alone do not show that both streams are open, since one may hold as many bytes as two.
    ASSERT_TRUE(AwaitMetric(R"(voxserve_streams{model="fake"})", kStreams)) << policy;
    ASSERT_TRUE(support::AwaitTrue([this] { return server_->held().sweep_bytes >= kStreams * kScanBytes; })) << policy;
    EXPECT_EQ(server_->held().streams, kStreams);
    EXPECT_GT(server_->held().frame_bytes, 0);
    EXPECT_TRUE(client.Kill());
    // A frame of one stream is running in the engine, so that stream stays until the frame ends.
    EXPECT_TRUE(support::AwaitTrue([this] { return server_->held().streams <= 1; })) << policy;
    engine_->Resume();
    ExpectNothingIsLeft();
  }
}

TEST_F(KilledClientsTest, InTheMiddleOfAStreamsFrame) {
  Start();
  TcpProxy proxy(server_->grpc_port(), kScanBytes / 2);
  ServiceClient remote(proxy.port());
  Vehicle vehicle(&remote, StreamConfigOf("fake"));
  ASSERT_TRUE(vehicle.Send(1, 10));
  ASSERT_TRUE(vehicle.AwaitResults(1));
  std::thread sender([&vehicle] { vehicle.Send(2, kNumPoints); });
  EXPECT_TRUE(proxy.AwaitUpload());
  EXPECT_EQ(server_->held().streams, 1);
  proxy.Cut();
  sender.join();
  EXPECT_EQ(vehicle.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  ExpectNothingIsLeft();
  EXPECT_EQ(MetricOf(R"(voxserve_frames_total{model="fake"})"), 2) << "its first one, and the test's own";
}

}  // namespace
}  // namespace voxserve::killed_clients_test
