// voxserve_paced_server MILLISECONDS runs a real server whose fake engine runs one request at a time and takes this
// long for each. The server's load therefore follows from the rate of its requests. Prints "grpc_port http_port" and
// ends when its standard input ends.

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/server.h"
#include "tests/server/fake_engine.h"

namespace voxserve {
namespace {

// Ends the engine's requests one by one, each after `time`. Does not return.
void RunEngine(FakeEngine* engine, EngineObserver* observer, absl::Duration time) {
  for (int64_t task = 1;; ++task) {
    while (!engine->AwaitStarted(task)) continue;
    const absl::Time start = absl::Now();
    absl::SleepFor(time);
    observer->OnDeviceTime("fake", absl::Now() - start);
    engine->EndOne();
  }
}

int Main(const std::string& milliseconds) {
  int time_ms = 0;
  if (!absl::SimpleAtoi(milliseconds, &time_ms) || time_ms < 1) {
    std::fprintf(stderr, "voxserve_paced_server MILLISECONDS: \"%s\" is no number of them\n", milliseconds.c_str());
    return 2;
  }
  Options options;
  options.port = options.http_port = options.admin_port = 0;
  options.memory_limit = int64_t{1} << 30;
  FakeEngine* engine = nullptr;
  EngineObserver* observer = nullptr;
  const auto server = Server::Start(options.Resolved(), "1.2.3", [&](EngineObserver* metrics, MemoryBudget*) {
    auto made = std::make_unique<FakeEngine>(
        FakeEngine::Options{.observer = metrics, .max_queue_requests = 256, .pause = FakeEngine::Pause::kAfterStart});
    engine = made.get();
    observer = metrics;
    return absl::StatusOr<std::unique_ptr<Engine>>(std::move(made));
  });
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return 1;
  }
  std::thread(RunEngine, engine, observer, absl::Milliseconds(time_ms)).detach();
  std::printf("%d %d\n", (*server)->grpc_port(), (*server)->http_port());
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  _exit(0);  // The engine's thread never ends.
}

}  // namespace
}  // namespace voxserve

int main(int argc, char** argv) { return voxserve::Main(argc == 2 ? argv[1] : ""); }
