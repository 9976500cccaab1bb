#include "server/signals.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <initializer_list>

namespace voxserve {
namespace {

sigset_t SetOf(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

sigset_t EndSignals() { return SetOf({SIGTERM, SIGINT, SIGQUIT}); }

sigset_t TakenSignals() { return SetOf({SIGTERM, SIGINT, SIGQUIT, SIGPWR, SIGXCPU, SIGHUP}); }

void IgnoreByDefault(int signal) {
  struct sigaction action = {};
  if (sigaction(signal, nullptr, &action) != 0) return;
  const bool is_default = (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
  if (is_default) std::signal(signal, SIG_IGN);
}

}  // namespace

void TakeSignals() {
  const sigset_t taken = TakenSignals();
  pthread_sigmask(SIG_BLOCK, &taken, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int signal : {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGSTKFLT}) IgnoreByDefault(signal);
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) IgnoreByDefault(signal);
}

int AwaitDrainSignal(absl::FunctionRef<void()> on_hangup) {
  const sigset_t taken = TakenSignals();
  for (;;) {
    int signal = 0;
    if (sigwait(&taken, &signal) != 0) continue;
    if (signal != SIGHUP) return signal;
    on_hangup();
  }
}

Descriptor OpenEndSignals() {
  const sigset_t signals = EndSignals();
  return Descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

int ReadSignal(const Descriptor& signals) {
  signalfd_siginfo info = {};
  if (read(signals.get(), &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) return 0;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace voxserve
