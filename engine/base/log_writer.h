#pragma once

// Writes the lines of Log (logging.h) from a queue, so that whoever logs never waits for the reader of stderr: a pipe
// that nobody reads, a terminal that is stopped. While one lives, Log goes through it; before and after, Log writes to
// stderr itself and may wait there.
//
// - Lines are written whole and in order, by one thread that the writer owns.
// - A line that does not fit into the queue is dropped. The next line that is written says before itself how many were:
//   "WARNING log lines were dropped: stderr is not read quickly enough num_lines=17".
// - The descriptor keeps its flags. O_NONBLOCK would belong to its open file, which other processes share, and opening
//   it again (/proc/self/fd/2) fails where another user made the pipe. The writer's thread asks poll first instead: a
//   pipe that says POLLOUT takes PIPE_BUF bytes without waiting. Where another process fills the pipe in between, the
//   write waits after all, and this thread alone with it.
//
// Thread-safe. One at a time in a process.

#include <unistd.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace voxserve {

class LogWriter {
 public:
  struct Options {
    int descriptor = STDERR_FILENO;
    int64_t max_queued_bytes = int64_t{1} << 20;
    absl::Duration flush_limit = absl::Seconds(1);  // for the destructor
  };

  explicit LogWriter(const Options& options);

  // Writes what is queued for flush_limit at most. It joins the thread, which may wait in a write (see above): a
  // process that has to end in time keeps its writer to the end and calls Flush.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Queues the line, with its end, where a writer lives; else writes it to stderr.
  static void Write(std::string line);

  // Returns when every line that was queued before has been written or the limit has passed; false in that case. Takes
  // no lock: a signal handler may call it.
  static bool Flush(absl::Duration limit);

 private:
  struct Line {
    std::string text;
    int64_t num_dropped_before = 0;
  };

  void Push(std::string text);
  void Run();
  // Blocks until there is something to write; false where nothing will come any more.
  bool Take(Line* line);
  // False where the writer was told to stop before the end.
  bool WriteAll(std::string_view text);
  void CountPending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const int stop_;  // an eventfd: readable once nothing shall be written any more
  absl::Mutex mutex_;
  std::deque<Line> lines_ ABSL_GUARDED_BY(mutex_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_dropped_ ABSL_GUARDED_BY(mutex_) = 0;  // since the last line that was queued
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // no line comes any more
  std::thread thread_;
};

}  // namespace voxserve
