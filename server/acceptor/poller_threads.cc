#include "server/acceptor/poller_threads.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace voxserve {

double PollerThreads::BusyShareSinceLastCall() {
  if (awake_ns_.empty()) {
    std::error_code error;
    for (const auto& folder : std::filesystem::directory_iterator("/proc/self/task", error)) {
      std::string name;
      std::ifstream file(folder.path() / "comm");
      if (std::getline(file, name) && name == name_) awake_ns_.emplace(folder.path() / "schedstat", 0);
    }
    last_call_ = absl::InfinitePast();
  }
  const absl::Time now = now_();
  const double elapsed_ns = absl::ToDoubleNanoseconds(now - std::exchange(last_call_, now));
  double least = awake_ns_.empty() ? 0 : 1;
  for (auto& [path, awake_ns] : awake_ns_) {
    std::ifstream file(path);
    int64_t running_ns = 0;
    int64_t waiting_ns = 0;  // for a processor
    if (!(file >> running_ns >> waiting_ns)) {
      awake_ns_.clear();  // the thread has ended
      return 0;
    }
    const int64_t before_ns = std::exchange(awake_ns, running_ns + waiting_ns);
    least = std::min(least, static_cast<double>(awake_ns - before_ns) / elapsed_ns);
  }
  return least;
}

}  // namespace voxserve
