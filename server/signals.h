#pragma once

// The signals of the server's process. No signal handler runs for them: the ones that the server acts on are blocked in
// all threads, and read with signalfd(2).
//
// - SIGTERM, SIGINT, SIGQUIT, SIGPWR, and SIGXCPU (`ulimit -t`): the server drains.
// - SIGHUP: the server reads its files again.
// - SIGPIPE, and SIGXFSZ (`ulimit -f`): ignored, so that the write fails with EPIPE or EFBIG, as it does with ENOSPC.
// - SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGSTKFLT and the realtime signals: ignored, unless a library
//   has set a handler, such as a profiler's. By default they would end the process with its calls in flight.
// - All others keep their default action: errors of the program (SIGSEGV, SIGABRT), SIGKILL, and stops by a terminal.

#include "absl/functional/function_ref.h"
#include "server/sockets/descriptor.h"

namespace voxserve {

// Blocks and ignores the signals. Called before the first thread starts, since threads inherit what is blocked.
void TakeSignals();

// Waits for a signal that drains the server, and returns it. Calls `on_hangup` for each SIGHUP that comes before it.
// Also sees signals that have come since TakeSignals.
int AwaitDrainSignal(absl::FunctionRef<void()> on_hangup);

// Returns a signalfd, which becomes readable by a signal that ends a draining server at once: SIGTERM, SIGINT or
// SIGQUIT. Other signals do nothing to a server that drains: SIGXCPU, for example, comes again every second.
Descriptor OpenEndSignals();
// Reads a signal from the descriptor. Returns 0 if there is none.
int ReadSignal(const Descriptor& signals);

}  // namespace voxserve
