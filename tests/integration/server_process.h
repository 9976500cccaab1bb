#pragma once

// The real binary as a child process: its arguments, its log, its exit status. Killed with the object.

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

  // Blocks until a line of stderr contains the text, or the process ends, or a minute has passed; the line, else "".
  std::string AwaitLine(const std::string& text);
  // What stands behind "key=" in the line that begins serving; -1 where it never did.
  int PortOf(const std::string& key);
  // From now on nobody reads stderr, until Wait has seen the process end.
  void StopReadingStderr();
  void Signal(int signal);
  // Exit status as a shell has it: 128 + n after signal n.
  int Wait();

  std::string stdout_text();  // all of it, after Wait
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
