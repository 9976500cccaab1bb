// Tests what signals do to a process that has called TakeSignals. Each test runs in a child process, since it changes
// the signals of the whole process.

#include "server/signals.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace voxserve::signals_test {
namespace {

// Ends the child process. The status is the number of the line whose check failed, or 0.
#define CHECK_IN_CHILD(condition) \
  if (!(condition)) _exit(__LINE__ & 0xff)

TEST(SignalsTest, SignalsThatMeanNothingDoNothing) {
  const auto child = [] {
    TakeSignals();
    for (const int signal : {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGSTKFLT, SIGPIPE, SIGXFSZ,
                             SIGRTMIN, SIGRTMIN + 3, SIGRTMAX}) {
      raise(signal);
    }
    _exit(0);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

TEST(SignalsTest, AHandlerThatALibraryHasSetStays) {
  const auto child = [] {
    std::signal(SIGPROF, [](int) { _exit(7); });
    TakeSignals();
    raise(SIGPROF);
    _exit(0);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(7), "");
}

TEST(SignalsTest, AHangupIsNoEnd) {
  const auto child = [] {
    TakeSignals();
    kill(getpid(), SIGHUP);
    int num_hangups = 0;
    const int signal = AwaitDrainSignal([&num_hangups] {
      ++num_hangups;
      kill(getpid(), num_hangups < 3 ? SIGHUP : SIGQUIT);
    });
    CHECK_IN_CHILD(num_hangups == 3);
    CHECK_IN_CHILD(signal == SIGQUIT);
    _exit(0);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

TEST(SignalsTest, EachSignalToEndDrains) {
  const auto child = [] {
    TakeSignals();
    for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGPWR, SIGXCPU}) {
      kill(getpid(), signal);
      CHECK_IN_CHILD(AwaitDrainSignal([] {}) == signal);
    }
    _exit(0);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

TEST(SignalsTest, DuringADrainOnlyAnEndIsRead) {
  const auto child = [] {
    TakeSignals();
    const Descriptor signals = OpenEndSignals();
    for (const int signal : {SIGHUP, SIGXCPU, SIGPWR, SIGUSR1}) kill(getpid(), signal);
    CHECK_IN_CHILD(ReadSignal(signals) == 0);
    pollfd event = {.fd = signals.get(), .events = POLLIN, .revents = 0};
    CHECK_IN_CHILD(poll(&event, 1, 0) == 0);
    kill(getpid(), SIGINT);
    CHECK_IN_CHILD(poll(&event, 1, 10'000) == 1);
    CHECK_IN_CHILD(ReadSignal(signals) == SIGINT);
    CHECK_IN_CHILD(ReadSignal(signals) == 0);
    _exit(0);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
}

TEST(SignalsTest, AWriteBeyondTheLimitOfAFileIsAnError) {
  const std::string path = absl::StrCat(testing::TempDir(), "/signals-", getpid());
  const auto child = [&path] {
    TakeSignals();
    const rlimit limit = {.rlim_cur = 4, .rlim_max = 4};
    CHECK_IN_CHILD(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK_IN_CHILD(write(file, "12345678", 8) == 4);
    CHECK_IN_CHILD(write(file, "5678", 4) == -1 && errno == EFBIG);
    _exit(0);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
  unlink(path.c_str());
}

}  // namespace
}  // namespace voxserve::signals_test
