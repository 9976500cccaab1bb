// Runs the voxserve process: flags, signals, exit status. Only this file looks at the environment and the machine.

#include <grpcpp/grpcpp.h>
#include <malloc.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/log_limiter.h"
#include "engine/base/log_writer.h"
#include "engine/base/logging.h"
#include "engine/base/steady_time.h"
#include "engine/runtime/cuda_devices.h"
#include "engine/serving/engine.h"
#include "server/grpc/library_log.h"
#include "server/host_gpu.h"
#include "server/identity/token_file.h"
#include "server/options.h"
#include "server/server.h"
#include "server/signals.h"
#include "server/sockets/descriptor.h"
#include "server/sockets/descriptor_limit.h"

namespace voxserve {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitStuckBatch = 3;
// The time that the process gets to end after the last answer. After this time, ShutdownWatchdog ends it.
constexpr absl::Duration kExitGrace = absl::Seconds(5);
// If a batch is stuck, a drain takes no longer than this. Batches of other devices can end in this time, and readiness
// probes can see that the server drains.
constexpr absl::Duration kStuckBatchDrain = absl::Seconds(5);
// The pause before a drain that found no memory is tried again.
constexpr absl::Duration kDrainPause = absl::Milliseconds(100);
// Time for a reader of stderr to take the last lines.
constexpr absl::Duration kLogFlushLimit = absl::Seconds(1);

// Ends the process without destructors or exit handlers: only the log has to be written first.
[[noreturn]] void ExitAtOnce(int status) {
  LogWriter::Flush(kLogFlushLimit);
  _exit(status);
}

// While a ShutdownWatchdog lives, a further signal to end (OpenEndSignals) ends the process at once, with status 128 +
// signal. So does the time limit, with `exit_status`.
class ShutdownWatchdog {
 public:
  ShutdownWatchdog(absl::Duration limit, int exit_status)
      : signals_(OpenEndSignals()),
        done_(eventfd(0, EFD_CLOEXEC)),
        thread_([this, limit, exit_status] { Watch(limit, exit_status); }) {}

  ~ShutdownWatchdog() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(done_.get(), &one, sizeof(one));
    thread_.join();
  }

 private:
  void Watch(absl::Duration limit, int exit_status) {
    const absl::Time deadline = SteadyNow() + limit;
    // poll takes at most some weeks.
    const auto left_ms = [deadline] {
      const absl::Duration left = std::clamp(deadline - SteadyNow(), absl::ZeroDuration(), absl::Hours(24));
      return static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
    };
    while (SteadyNow() < deadline) {
      pollfd events[2] = {{.fd = done_.get(), .events = POLLIN, .revents = 0},
                          {.fd = signals_.get(), .events = POLLIN, .revents = 0}};
      poll(events, 2, left_ms());
      if (events[0].revents != 0) return;
      const int signal = events[1].revents == 0 ? 0 : ReadSignal(signals_);
      if (signal == 0) continue;
      Log(LogLevel::kWarning, "second signal: ending at once", {{"signal", signal}});
      ExitAtOnce(128 + signal);
    }
    Log(LogLevel::kError, "shutdown is stuck: giving up", {{"after_seconds", absl::ToDoubleSeconds(limit)}});
    ExitAtOnce(exit_status);
  }

  const Descriptor signals_;
  const Descriptor done_;  // an eventfd: readable when the thread must end
  std::thread thread_;
};

// Writes a library's log line with this process's LogWriter, and limits warnings. The library itself would wait for the
// reader of stderr, and clients can cause many of its lines.
void LogFromLibrary(LogLevel level, const char* library, std::string_view text) {
  static LogLimiter& limiter = *new LogLimiter;  // never destroyed: threads of libraries log until the process ends
  try {
    if (level < LogLevel::kWarning) return Log(level, library, {{"text", text}});
    if (const std::optional<int64_t> num_left_out = limiter.Admit(library)) {
      Log(level, library, {{"text", text}, {"left_out", *num_left_out}});
    }
  } catch (const std::bad_alloc&) {
    LogWriter::Drop();
  }
}

// Replaces the standard library's terminate handler, which writes to stderr and may wait for the reader of stderr.
[[noreturn]] void LogUncaughtException() {
  try {
    if (const std::exception_ptr exception = std::current_exception()) std::rethrow_exception(exception);
    Log(LogLevel::kError, "terminated without an exception");
  } catch (const std::exception& exception) {
    Log(LogLevel::kError, "an exception was not caught", {{"error", exception.what()}});
  } catch (...) {
    Log(LogLevel::kError, "an exception of an unknown type was not caught");
  }
  std::abort();
}

// The handler of SIGABRT, which gRPC's assertions and uncaught exceptions raise right after they log the reason. It
// gives the LogWriter's thread time to write that line. (Flush may be called in a signal handler.)
void FlushBeforeAbort(int abort_signal) {
  LogWriter::Flush(absl::Milliseconds(200));
  signal(abort_signal, SIG_DFL);
  raise(abort_signal);
}

void SendAllLinesToTheWriter() {
  new LogWriter({});  // never destroyed: its destructor might wait for the reader of stderr
  SetLibraryLog(LogFromLibrary);
  std::set_terminate(LogUncaughtException);
  signal(SIGABRT, FlushBeforeAbort);
}

// Makes the C library return freed memory to the system soon, so that the resident memory follows the memory in use:
// - Blocks of 8 MiB and more are always mapped, and unmapped when they are freed. By default the C library raises this
//   threshold, up to 32 MiB, when it frees such a block, and then keeps later blocks of that size. Most scans and
//   answers are smaller than 8 MiB: they come from the heap, whose pages are in memory already.
// - Free pages at the heap's end go back from 64 MiB on; the engine returns the others when it is idle.
// - 8 heaps serve all threads. By default there are 8 for each CPU, and each keeps free memory that others lack.
// A value that the environment gives the C library by one of these variables stays (mallopt(3)).
void SetUpHeap() {
  const auto set = [](int option, int value, const char* variable) {
    const char* const given = getenv(variable);
    if (given == nullptr || *given == '\0') mallopt(option, value);
  };
  set(M_MMAP_THRESHOLD, 8 << 20, "MALLOC_MMAP_THRESHOLD_");
  set(M_TRIM_THRESHOLD, 64 << 20, "MALLOC_TRIM_THRESHOLD_");
  set(M_ARENA_MAX, 8, "MALLOC_ARENA_MAX");
}

// Ending decides the exit status. The process ends by a stop signal: from outside, or sent by Fail because the engine
// cannot go on. Thread-safe.
class Ending {
 public:
  // Makes the process drain and end with this status, unless an earlier failure has set another status.
  void Fail(int exit_status) {
    int none = EXIT_SUCCESS;
    exit_status_.compare_exchange_strong(none, exit_status);
    // The signal is sent only once: a second one would end the process before it has drained.
    if (!has_begun_.exchange(true)) kill(getpid(), SIGTERM);
  }
  void Begin() { has_begun_ = true; }
  int exit_status() const { return exit_status_; }

 private:
  std::atomic<int> exit_status_{EXIT_SUCCESS};
  std::atomic<bool> has_begun_{false};
};

// Drains the server. A drain that finds no memory is tried again, since calls that end give memory back; the
// ShutdownWatchdog limits the time.
absl::Status Drain(Server& server, absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  for (;; timeout = deadline - SteadyNow()) {
    try {
      return server.Drain(timeout);
    } catch (const std::bad_alloc&) {
      Log(LogLevel::kError, "no memory to drain: trying again");
      absl::SleepFor(kDrainPause);
    }
  }
}

int Serve(const Options& options) {
  Ending ending;
  Log(LogLevel::kInfo, "voxserve starts",
      {{"version", VOXSERVE_VERSION},
       {"grpc", grpc::Version()},
       {"pid", getpid()},
       {"model_repository", options.model_repository},
       {"threads", Engine::Options{.num_threads = options.threads}.ResolvedThreads()},
       {"memory_limit_bytes", options.memory_limit},
       {"memory_budget_bytes", options.BudgetBytes()}});
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(
      options, VOXSERVE_VERSION, [&options, &ending](EngineObserver* observer, MemoryBudget* memory_budget) {
        return Engine::Create({.model_repository = options.model_repository,
                               .num_threads = options.threads,
                               .max_queue_requests = options.max_queue_requests,
                               .max_queue_bytes = options.max_queue_bytes,
                               .max_answer_bytes = options.max_message_bytes,
                               .max_grid_bytes = options.max_grid_bytes,
                               .devices = options.devices,
                               .streams_per_device = options.streams_per_device,
                               .device_memory_limit = options.device_memory_limit,
                               .memory_budget = memory_budget,
                               .plan_dir = options.plan_dir,
                               .engine_version = VOXSERVE_VERSION,
                               .model_poll_interval = absl::Seconds(options.model_poll_seconds),
                               .deterministic = options.deterministic,
                               .captured_batches = options.captured_batches,
                               .tune_on_load = options.tune_on_load,
                               .observer = observer,
                               .on_device_failed =
                                   [&ending](const absl::Status& status) {
                                     Log(LogLevel::kError, "a GPU failed: draining, then ending for the supervisor",
                                         {{"error", std::string(status.message())}});
                                     ending.Fail(kExitFailed);
                                   },
                               .max_request_time = options.max_request_time,
                               .stuck_batch_time = options.stuck_batch_time,
                               .stuck_batch_factor = options.stuck_batch_factor,
                               .on_batch_stuck = [&ending] { ending.Fail(kExitStuckBatch); }});
      });
  if (!server.ok()) {
    Log(LogLevel::kError, "cannot start", {{"error", std::string(server.status().message())}});
    return kExitFailed;
  }
  const std::string devices = (*server)->devices();
  const std::string gpu = FindNvidiaGpu();
  if (!gpu.empty() && devices.find("cuda") == std::string::npos) {
    Log(LogLevel::kWarning, "a GPU is here, and requests are answered by the CPU, more slowly",
        {{"gpu", gpu},
         {"reason", !options.devices.empty() ? "--devices asks for it"
                    : !CudaVersion().empty() ? "CUDA does not let itself be used on it: see above, and nvidia-smi"
                                             : "this build is without CUDA"}});
  }
  Log(LogLevel::kInfo, "serving",
      {{"host", options.host},
       {"grpc_port", (*server)->grpc_port()},
       {"http_port", (*server)->http_port()},
       {"admin_host", options.admin_host},
       {"admin_port", (*server)->admin_port()},
       {"tls", !options.tls.enabled()          ? "off"
               : options.tls.client_ca.empty() ? "on"
                                               : "mutual"},
       {"tokens", options.auth_tokens.empty() ? "off" : "on"},
       {"devices", devices},
       {"backend", devices.find("cuda") == std::string::npos ? "cpu" : "cuda"}});

  const int signal = AwaitDrainSignal([&server] {
    Log(LogLevel::kInfo, "SIGHUP: reading the model repository, and the files of TLS and of tokens, again");
    try {
      (*server)->ReadFilesAgain();
    } catch (const std::bad_alloc&) {
      Log(LogLevel::kError, "no memory to read files again: send SIGHUP once more");
    }
  });
  ending.Begin();
  const absl::Time start = SteadyNow();
  const bool is_stuck = ending.exit_status() == kExitStuckBatch;
  const absl::Duration timeout = is_stuck ? std::min(options.drain_timeout, kStuckBatchDrain) : options.drain_timeout;
  Log(LogLevel::kInfo, "draining", {{"signal", signal}, {"drain_timeout", absl::FormatDuration(timeout)}});
  auto watchdog = std::make_unique<ShutdownWatchdog>(timeout + kExitGrace, is_stuck ? kExitStuckBatch : kExitFailed);
  if (const absl::Status drained = Drain(**server, timeout); !drained.ok()) {
    Log(LogLevel::kError, "drain timed out", {{"error", std::string(drained.message())}});
    ExitAtOnce(ending.exit_status() == kExitStuckBatch ? kExitStuckBatch : kExitFailed);
  }
  // Every request is answered. If gRPC 1.51.1 ever failed to start a thread for lack of memory, it never ends. This is
  // no failure of the server, so the watchdog then ends the process with `status`.
  const int status = ending.exit_status();
  watchdog.reset();
  watchdog = std::make_unique<ShutdownWatchdog>(kExitGrace, status);
  server->reset();
  Log(LogLevel::kInfo, "stopped", {{"drain_ms", absl::ToInt64Milliseconds(SteadyNow() - start)}});
  return status;
}

int PrintHashOfToken() {
  std::string token;
  std::getline(std::cin, token);
  if (!token.empty() && token.back() == '\r') token.pop_back();
  if (std::cin.peek() != std::istream::traits_type::eof()) {
    std::fputs("voxserve: --hash_token: standard input has more than one line\n", stderr);
    return kExitUsage;
  }
  const absl::StatusOr<std::string> hash = HashToken(token);
  if (!hash.ok()) {
    std::fprintf(stderr, "voxserve: --hash_token: %s\n", std::string(hash.status().message()).c_str());
    return kExitUsage;
  }
  std::puts(hash->c_str());
  return EXIT_SUCCESS;
}

int Main(int argc, char** argv) {
  const absl::StatusOr<CommandLine> line = ParseCommandLine(std::vector<std::string>(argv + 1, argv + argc));
  if (!line.ok()) {
    std::fprintf(stderr, "voxserve: %s; see voxserve --help\n", std::string(line.status().message()).c_str());
    return kExitUsage;
  }
  switch (line->action) {
    case CommandLine::Action::kHelp:
      std::fputs(HelpText().c_str(), stdout);
      return EXIT_SUCCESS;
    case CommandLine::Action::kVersion:
      std::puts("voxserve " VOXSERVE_VERSION);
      return EXIT_SUCCESS;
    case CommandLine::Action::kHashToken:
      return PrintHashOfToken();
    case CommandLine::Action::kServe:
      break;
  }
  TakeSignals();  // before the first thread starts
  SetMinLogLevel(line->options.log_level);
  SetLogFormat(line->options.log_format);
  RaiseDescriptorLimit();

  // Debian's Abseil looks for deadlocks at every lock of a mutex, which takes four times as long.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  SetUpHeap();
  SendAllLinesToTheWriter();
  const int status = Serve(line->options.Resolved());
  LogWriter::Flush(kLogFlushLimit);
  return status;
}

}  // namespace
}  // namespace voxserve

int main(int argc, char** argv) { return voxserve::Main(argc, argv); }
