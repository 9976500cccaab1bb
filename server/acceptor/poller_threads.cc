#include "server/acceptor/poller_threads.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace voxserve {

PollerThreads::Use PollerThreads::UseSinceLastCall() {
  const bool is_first = times_.empty();
  if (is_first) {
    std::error_code error;
    for (const auto& folder : std::filesystem::directory_iterator("/proc/self/task", error)) {
      std::string name;
      std::ifstream file(folder.path() / "comm");
      if (std::getline(file, name) && name == name_) times_.emplace(folder.path() / "schedstat", Times());
    }
  }
  const absl::Time now = now_();
  const double elapsed_ns = absl::ToDoubleNanoseconds(now - std::exchange(last_call_, now));
  Use use{.busy_share = 1};
  for (auto& [path, times] : times_) {
    std::ifstream file(path);
    Times read;
    if (!(file >> read.running_ns >> read.waiting_ns)) {
      times_.clear();  // the thread has ended
      return {};
    }
    const Times before = std::exchange(times, read);
    const auto running_ns = static_cast<double>(read.running_ns - before.running_ns);
    use.busy_share =
        std::min(use.busy_share, (running_ns + static_cast<double>(read.waiting_ns - before.waiting_ns)) / elapsed_ns);
    use.cpu_seconds += running_ns * 1e-9;
  }
  return is_first ? Use() : use;
}

}  // namespace voxserve
