// Tests HttpServer under attacks (silent, slow and endless connections, lack of descriptors): health probes must still
// be answered in time, and memory and time must be bounded.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/runtime/available_memory.h"
#include "tests/server/http/http_server_fixture.h"
#include "tests/support/raw_connection.h"
#include "tests/support/sanitizers.h"

namespace voxserve::http_server_limits_test {
namespace {

using testing::AnyOf;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

constexpr char kProbe[] = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
constexpr char kOk[] = "HTTP/1.1 200 OK\r\n";
// Resident memory may grow by this much. A sanitizer's heap keeps freed blocks.
constexpr int64_t kMaxGrowth = int64_t{support::kIsSanitized ? 64 : 8} << 20;
// A connection's thread takes 1 to 3 ms to start under a sanitizer.
constexpr absl::Duration kProbeLimit = absl::Seconds(support::kIsSanitized ? 10 : 2);

int64_t Count(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class HttpServerLimitsTest : public HttpServerFixture {
 protected:
  // Sends probes one after the other, and expects an answer to each in time. Prints the longest wait.
  void ExpectProbesAreAnswered(int num_probes) {
    absl::Duration longest;
    for (int i = 0; i < num_probes; ++i) {
      const absl::Time start = absl::Now();
      EXPECT_THAT(Ask(kProbe), StartsWith(kOk));
      longest = std::max(longest, absl::Now() - start);
    }
    EXPECT_LT(longest, kProbeLimit);
    std::printf("%d probes, the longest took %s\n", num_probes, absl::FormatDuration(longest).c_str());
  }
  // Ends a server whose connections may live for an hour. The limit is one of a busy machine.
  void ExpectTheEndIsNotHeldUp() {
    const absl::Time start = absl::Now();
    server_.reset();
    EXPECT_LT(absl::Now() - start, absl::Minutes(1));
    std::printf("the end took %s\n", absl::FormatDuration(absl::Now() - start).c_str());
  }
};

// Parameter: the number of connections that begin a request and then send a byte of it every 50 ms or so.
class DrippingTest : public HttpServerLimitsTest, public testing::WithParamInterface<int> {};

TEST_P(DrippingTest, ProbesAreAnswered) {
  Start({.connection_time = absl::Seconds(2)});
  std::atomic<bool> done{false};
  std::vector<RawConnection> dripping;
  std::thread drip([&] {
    while (!done) {
      for (int i = 0; i < GetParam() && !done; ++i) {
        if (dripping.size() <= static_cast<size_t>(i)) {
          dripping.emplace_back(server_->port()).Send("GET /metrics HTTP/1.1\r\nX: ");
        } else if (!dripping[i].Send("x")) {
          dripping[i] = RawConnection(server_->port());
          dripping[i].Send("GET /metrics HTTP/1.1\r\nX: ");
        }
      }
      absl::SleepFor(absl::Milliseconds(50));
    }
  });
  ExpectProbesAreAnswered(50);
  absl::SleepFor(absl::Seconds(2.5));
  ExpectProbesAreAnswered(50);
  done = true;
  drip.join();
  dripping.clear();
  Start({.connection_time = absl::Hours(1)});
  for (int i = 0; i < GetParam(); ++i) dripping.emplace_back(server_->port()).Send("GET /metrics HTTP/1.1\r\nX: ");
  ExpectProbesAreAnswered(1);
  ExpectTheEndIsNotHeldUp();
}

INSTANTIATE_TEST_SUITE_P(Connections, DrippingTest, testing::Values(40, 400));

TEST_F(HttpServerLimitsTest, AConnectionEndsAtItsAgeWhateverItSends) {
  Start({.connection_time = absl::Milliseconds(500)});
  RawConnection silent(server_->port());
  RawConnection dripping(server_->port());
  const absl::Time start = absl::Now();
  dripping.Send("GET / HTTP/1.1\r\nX: ");
  while (dripping.Send("x") && absl::Now() - start < absl::Seconds(10)) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(450));
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(silent.ReadAll(), "");
  EXPECT_TRUE(silent.is_closed());
  ExpectProbesAreAnswered(1);
}

TEST_F(HttpServerLimitsTest, SilentConnectionsInSequenceAreClosed) {
  for (int i = 0; i < 1300; ++i) RawConnection(server_->port());
  ExpectProbesAreAnswered(1);
}

// A SilentCrowd runs a child process that opens connections, sends nothing, and keeps them open until the SilentCrowd
// is destroyed. The child's descriptors do not count against the limit of this process.
class SilentCrowd {
 public:
  SilentCrowd(int port, int num_connections) {
    int opened[2];
    EXPECT_EQ(pipe(opened), 0);
    child_ = fork();
    if (child_ == 0) {  // the child makes only system calls: other threads may have held locks when it forked
      const rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
      setrlimit(RLIMIT_NOFILE, &limit);
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      for (int i = 0; i < num_connections; ++i) {
        connect(socket(AF_INET, SOCK_STREAM, 0), reinterpret_cast<sockaddr*>(&address), sizeof(address));
      }
      [[maybe_unused]] const ssize_t written = write(opened[1], "x", 1);
      pause();
      _exit(0);
    }
    close(opened[1]);
    char byte;
    EXPECT_EQ(read(opened[0], &byte, 1), 1);
    close(opened[0]);
  }
  ~SilentCrowd() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

 private:
  pid_t child_ = -1;
};

// While it lives, this process can open at most num_more more descriptors.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int num_more) {
    const int next = dup(STDIN_FILENO);
    close(next);
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit limit = {.rlim_cur = static_cast<rlim_t>(next + num_more), .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

TEST_F(HttpServerLimitsTest, SilentConnectionsAtOnceLeaveRoomForProbes) {
  const SilentCrowd crowd(server_->port(), 1300);
  ExpectProbesAreAnswered(100);
}

// Sends probes over sockets that exist already, and keeps the answers. ExpectAllInTime checks them later, when
// descriptors are free again: UndefinedBehaviorSanitizer needs descriptors for its own checks.
struct Answers {
  Answers(std::vector<RawConnection>* probes, int port) {
    for (RawConnection& probe : *probes) {
      const absl::Time start = absl::Now();
      if (probe.Connect(port)) probe.Send(kProbe);
      texts.push_back(probe.ReadAll());
      longest = std::max(longest, absl::Now() - start);
    }
  }
  void ExpectAllInTime() const {
    EXPECT_THAT(texts, Each(StartsWith(kOk)));
    EXPECT_LT(longest, kProbeLimit);
    std::printf("%zu probes, the longest took %s\n", texts.size(), absl::FormatDuration(longest).c_str());
  }

  std::vector<std::string> texts;
  absl::Duration longest;
};

class DescriptorsTest : public HttpServerLimitsTest {
 protected:
  std::vector<RawConnection> probes_{50};
};

TEST_F(DescriptorsTest, AProbeGetsOneThatIsKept) {
  const int port = server_->port();
  auto limit = std::make_unique<DescriptorLimit>(0);
  const int no_descriptor = dup(STDIN_FILENO);
  const Answers answers(&probes_, port);
  limit.reset();
  EXPECT_LT(no_descriptor, 0);
  answers.ExpectAllInTime();
  ExpectProbesAreAnswered(10);
}

TEST_F(DescriptorsTest, SilentConnectionsThatHoldAllGo) {
  const int port = server_->port();
  auto limit = std::make_unique<DescriptorLimit>(4);  // two of them are for the crowd's pipe
  const SilentCrowd crowd(port, 1300);
  const Answers answers(&probes_, port);
  limit.reset();
  answers.ExpectAllInTime();
  ExpectProbesAreAnswered(10);
}

TEST_F(DescriptorsTest, ALimitThatFallsBelowWhatIsOpen) {
  const int port = server_->port();
  const SilentCrowd crowd(port, 1300);
  ExpectProbesAreAnswered(1);  // when the probe is answered, the whole crowd has been accepted
  auto limit = std::make_unique<DescriptorLimit>(0);
  const Answers answers(&probes_, port);
  limit.reset();
  answers.ExpectAllInTime();
  ExpectProbesAreAnswered(10);
}

TEST_F(HttpServerLimitsTest, EndlessBodiesAreNotRead) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  const std::string chunk = "10000\r\n" + std::string(65536, 'x') + "\r\n";
  const int64_t before = ResidentBytes();
  for (const char* request : {"GET /metrics", "POST /metrics", "PUT /nothing"}) {
    RawConnection connection(server_->port());
    connection.Send(absl::StrCat(request, " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"));
    const int64_t sent = connection.SendUntilClosed(chunk, kMaxBytes);
    EXPECT_LT(sent, 64 << 20) << request;
    std::printf("%s: the connection took %ld bytes\n", request, sent);
  }
  const int64_t grown = ResidentBytes() - before;
  EXPECT_LT(grown, kMaxGrowth);
  std::printf("resident memory grew by %ld bytes\n", grown);
  ExpectProbesAreAnswered(1);
}

TEST_F(HttpServerLimitsTest, EndlessRequestLinesAndHeadersAreRefused) {
  const int64_t before = ResidentBytes();
  for (const char* begin : {"", "GET /", "GET / HTTP/1.1\r\nX: ", "GET / HTTP/1.1\r\n", "\r\n"}) {
    for (const char* part : {"x", "x: y\r\n", "\r\n ", "\r\n"}) {
      std::string bytes;
      while (bytes.size() < 65536) bytes += part;
      RawConnection connection(server_->port());
      connection.Send(begin);
      EXPECT_LT(connection.SendUntilClosed(bytes, int64_t{1} << 30), 64 << 20) << begin << part;
    }
  }
  EXPECT_LT(ResidentBytes() - before, kMaxGrowth);
  ExpectProbesAreAnswered(1);
}

TEST_F(HttpServerLimitsTest, LongRequestsGetAnAnswer) {
  EXPECT_THAT(Ask("GET /" + std::string(20'000, 'x') + " HTTP/1.1\r\nHost: x\r\n\r\n"),
              AnyOf(StartsWith("HTTP/1.1 414 "), StartsWith("HTTP/1.1 431 "), ""));
  EXPECT_THAT(Ask("GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(20'000, 'x') + "\r\n\r\n"),
              AnyOf(StartsWith("HTTP/1.1 431 "), ""));
}

TEST_F(HttpServerLimitsTest, RequestsThatAreNoneAreClosed) {
  Start({.connection_time = absl::Milliseconds(500)});
  for (const char* bytes : {"\x16\x03\x01\x02\x00\x01\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET\r\n\r\n",
                            "GET /healthz HTTP/9.9\r\n\r\n", "GET /healthz HTTP/1.1\r\nno colon\r\n\r\n"}) {
    const std::string answer = Ask(bytes);
    EXPECT_THAT(answer, AnyOf(StartsWith("HTTP/1."), "")) << bytes;
  }
  ExpectProbesAreAnswered(1);
}

TEST_F(HttpServerLimitsTest, RangesGetTheWholeBodyOnce) {
  metrics_ = std::string(100'000, 'm');
  std::string ranges = "0-";
  for (int i = 0; i < 1000; ++i) ranges += ",0-";
  const std::string answer = Ask(absl::StrCat("GET /metrics HTTP/1.1\r\nHost: x\r\nRange: bytes=", ranges, "\r\n\r\n"));
  EXPECT_THAT(answer, StartsWith(kOk));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Length: 100000\r\n"));
  EXPECT_LT(answer.size(), 101'000u);
}

TEST_F(HttpServerLimitsTest, AConnectionGetsOneAnswer) {
  std::string pipelined;
  for (int i = 0; i < 100; ++i) pipelined += kProbe;
  EXPECT_EQ(Count(Ask(pipelined), kOk), 1);
}

TEST_F(HttpServerLimitsTest, AnUnreadAnswerIsDroppedAtItsTime) {
  metrics_ = std::string(32 << 20, 'm');  // more than the buffers of sockets hold
  Start({.connection_time = absl::Milliseconds(500)});
  RawConnection unread(server_->port());
  unread.Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  ExpectProbesAreAnswered(10);
  absl::SleepFor(absl::Seconds(1));
  const std::string answer = unread.ReadAll();
  EXPECT_TRUE(unread.is_closed());
  EXPECT_THAT(answer, StartsWith(kOk));
  EXPECT_LT(answer.size(), 32u << 20);
}

TEST_F(HttpServerLimitsTest, UnreadAnswersDoNotHoldTheEndUp) {
  metrics_ = std::string(8 << 20, 'm');
  Start({.connection_time = absl::Hours(1)});
  std::vector<RawConnection> unread;
  for (int i = 0; i < 4; ++i) {
    unread.emplace_back(server_->port()).Send("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  ExpectProbesAreAnswered(1);
  ExpectTheEndIsNotHeldUp();
}

TEST_F(HttpServerLimitsTest, ALongAnswerArrivesWhole) {
  metrics_ = std::string(8 << 20, 'm');
  const std::string answer = Ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(answer, StartsWith(kOk));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n" + metrics_));
}

}  // namespace
}  // namespace voxserve::http_server_limits_test
