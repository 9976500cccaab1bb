#pragma once

// ServerProcess runs the server's real binary as a child process. Tests read the process's log (stderr) and exit
// status. The destructor kills the process if it still runs.

#include <sys/types.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace voxserve {

class ServerProcess {
 public:
  explicit ServerProcess(const std::vector<std::string>& args);
  ~ServerProcess();

  // Blocks until stderr has a line that contains `text`, the process closes stderr, or a minute has passed. Returns the
  // first such line, or "" if there is none.
  std::string AwaitLine(const std::string& text);
  // Returns the number after "key=" in the log line whose message begins with "serving". Returns -1 if the server does
  // not write such a line within a minute, or if the line has no such key.
  int PortOf(const std::string& key);
  // Stops reading stderr, so that its pipe may become full. Wait reads the rest once the process has ended.
  void StopReadingStderr();
  void Signal(int signal);
  // Waits for the process to end. Returns its exit status as a shell does: 128 + n after signal n.
  int Wait();

  std::string stdout_text();  // Returns all that the process wrote. Valid after Wait.
  std::string stderr_text();

 private:
  void ReadStdout(int descriptor);
  void ReadStderr(int descriptor);
  void ReadStderrAgain();

  pid_t pid_ = -1;
  absl::Mutex mutex_;
  std::string stdout_ ABSL_GUARDED_BY(mutex_);
  std::string stderr_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_stderr_ ABSL_GUARDED_BY(mutex_) = true;
  std::thread stdout_reader_;
  std::thread stderr_reader_;
};

}  // namespace voxserve
