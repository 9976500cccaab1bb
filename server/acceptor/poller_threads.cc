#include "server/acceptor/poller_threads.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace voxserve {

PollerThreads::Use PollerThreads::UseSinceLastCall() {
  const absl::Time now = now_();
  const double elapsed_ns = absl::ToDoubleNanoseconds(now - std::exchange(last_call_, now));
  const std::map<std::string, Times> before = std::exchange(times_, {});
  Use use;
  std::error_code error;
  // (The iterator's ++ would throw where a folder cannot be read.)
  for (std::filesystem::directory_iterator folder("/proc/self/task", error), end; !error && folder != end;
       folder.increment(error)) {
    std::string name;
    std::ifstream comm(folder->path() / "comm");
    if (!std::getline(comm, name) || !names_.contains(name)) continue;
    const std::string path = folder->path() / "schedstat";
    std::ifstream file(path);
    Times times;
    if (!(file >> times.running_ns >> times.waiting_ns)) continue;  // the thread has ended
    times_.emplace(path, times);
    const auto known = before.find(path);
    if (known == before.end()) continue;
    const auto running_ns = static_cast<double>(times.running_ns - known->second.running_ns);
    const auto waiting_ns = static_cast<double>(times.waiting_ns - known->second.waiting_ns);
    use.busy_share = std::max(use.busy_share, (running_ns + waiting_ns) / elapsed_ns);
    use.cpu_seconds += running_ns * 1e-9;
  }
  return use;
}

}  // namespace voxserve
