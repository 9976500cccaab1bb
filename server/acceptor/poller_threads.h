#pragma once

// PollerThreads tells how busy the threads are with which gRPC reads connections. A thread that reads from a connection
// goes on for as long as bytes come, and serves nobody else meanwhile.
//
// gRPC 1.51.1 serves its callback API by threads named "nexting_thread": half as many as the machine has cores, at
// least 2 and at most 16. Work on a connection that another thread works on too moves to threads named
// "default-executor", which are made as they are needed; one that reads an endless header then holds up others, while
// the first threads sleep. Linux tells of each thread how long it has run, and how long it has waited for a processor
// (/proc/self/task/ID/schedstat); the rest it has slept.
//
// Later versions read by threads of another name (NamesOfReadingThreads).
//
// Threads: one thread uses an object.

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "engine/base/steady_time.h"
#include "server/grpc/grpc_version.h"

namespace voxserve {

class PollerThreads {
 public:
  // names: of the threads, as Linux has them, up to 15 characters.
  explicit PollerThreads(std::set<std::string> names = NamesOfReadingThreads(),
                         std::function<absl::Time()> now = SteadyNow)
      : names_(std::move(names)), now_(std::move(now)) {}

  struct Use {
    double busy_share = 0;   // of the time, from 0 to 1, in which the busiest of the threads did not sleep
    double cpu_seconds = 0;  // that all threads have run
  };

  // Returns what the threads that existed at the last call have done since then. All is 0 at the first call, if there
  // are no such threads, and where the system does not tell.
  Use UseSinceLastCall();

 private:
  struct Times {
    int64_t running_ns = 0;
    int64_t waiting_ns = 0;  // for a processor
  };

  const std::set<std::string> names_;
  const std::function<absl::Time()> now_;
  absl::Time last_call_ = absl::InfinitePast();
  std::map<std::string, Times> times_;  // at the last call, by the file of a thread
};

}  // namespace voxserve
