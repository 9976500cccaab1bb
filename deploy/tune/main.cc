// Runs the voxserve-tune process. Only this file reads the terminal and the signals.

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "deploy/tune/tune.h"
#include "engine/base/logging.h"

namespace {

volatile std::sig_atomic_t g_is_interrupted = 0;

// A second signal ends the process at once. A SIGHUP that nohup ignores stays ignored.
void CatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { g_is_interrupted = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGQUIT, &action, nullptr);
  struct sigaction hangup = {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);  // a plan beyond `ulimit -f` is then an error (EFBIG)
}

}  // namespace

int main(int argc, char** argv) {
  CatchInterrupts();
  voxserve::SetMinLogLevel(voxserve::LogLevel::kWarning);
  const char* const terminal = std::getenv("TERM");
  return voxserve::tune::Run(
      std::vector<std::string>(argv + 1, argv + argc),
      {.out = &std::cout,
       .err = &std::cerr,
       .err_is_tty = isatty(STDERR_FILENO) == 1 && terminal != nullptr && std::string(terminal) != "dumb",
       .is_interrupted = [] { return g_is_interrupted != 0; },
       .version = VOXSERVE_VERSION});
}
