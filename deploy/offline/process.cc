#include "deploy/offline/process.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/cli/progress_bar.h"
#include "engine/base/logging.h"
#include "engine/model/problems.h"

namespace voxserve::offline {
namespace {

constexpr absl::Duration kRedraw = absl::Milliseconds(100);  // interval of redrawing the bar in a terminal

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
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is then an error (EFBIG)
}

int Fail(const std::string& program, const absl::Status& status, std::ostream& err) {
  const Problems problems = ProblemsOf(status);
  if (problems.size() < 2) {
    err << program << ": " << (problems.empty() ? std::string(status.message()) : *problems.begin()) << std::endl;
    return kExitFailure;
  }
  err << program << ": the model has " << problems.size() << " problems:\n";
  for (const std::string& problem : problems.Lines()) err << "  " << problem << "\n";
  err << std::flush;
  return kExitFailure;
}

}  // namespace

int Main(int argc, char** argv, const std::string& version,
         int (*run)(const std::vector<std::string>& words, const Surroundings& surroundings)) {
  CatchInterrupts();
  SetMinLogLevel(LogLevel::kWarning);
  const char* const terminal = std::getenv("TERM");
  return run(std::vector<std::string>(argv + 1, argv + argc),
             {.out = &std::cout,
              .err = &std::cerr,
              .err_is_tty = isatty(STDERR_FILENO) == 1 && terminal != nullptr && std::string_view(terminal) != "dumb",
              .is_interrupted = [] { return g_is_interrupted != 0; },
              .version = version});
}

int FailUsage(const std::string& program, const absl::Status& status, std::ostream& err) {
  err << program << ": " << status.message() << "; see " << program << " --help" << std::endl;
  return kExitUsage;
}

int Finish(const std::string& program, const std::function<absl::Status()>& work, std::ostream& err) {
  absl::Status status;
  try {
    status = work();
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("the work does not fit into memory");
  } catch (const std::exception& error) {  // from the standard library: sizes, files
    status = absl::InternalError(absl::StrCat("it failed: ", error.what()));
  }
  if (status.ok()) return kExitOk;
  if (absl::IsCancelled(status)) {
    err << program << ": interrupted; nothing was written" << std::endl;
    return kExitInterrupted;
  }
  return Fail(program, status, err);
}

void ProgressReport::Show(double fraction, const std::string& stage) {
  const absl::Time now = absl::Now();
  const bool is_due = surroundings_.err_is_tty ? now - last_drawn_ >= kRedraw : stage != stage_;
  if (!is_due) return;
  const std::string line = FormatProgress(fraction, stage, now - start_);
  *surroundings_.err << (surroundings_.err_is_tty ? absl::StrCat("\r\x1b[K", line) : absl::StrCat(line, "\n"))
                     << std::flush;
  stage_ = stage;
  last_drawn_ = now;
  is_drawn_ = true;
}

void ProgressReport::Clear() {
  if (is_drawn_ && surroundings_.err_is_tty) *surroundings_.err << "\r\x1b[K" << std::flush;
  is_drawn_ = false;
}

std::string FormatProgress(double fraction, const std::string& stage, absl::Duration elapsed) {
  const int64_t seconds = absl::ToInt64Seconds(elapsed);
  return absl::StrFormat("%s  %d:%02d  %s", client::FormatFraction(fraction), seconds / 60, seconds % 60, stage);
}

}  // namespace voxserve::offline
