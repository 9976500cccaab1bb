#pragma once

// LogWriter writes the lines of Log (logging.h) from a queue on a thread of its own, so that a logging thread never
// waits for the reader of stderr (a pipe that nobody reads, a stopped terminal). Log uses a LogWriter while one exists.
// Without a LogWriter, Log writes to stderr itself and may wait there.
//
// - Lines are written whole and in order, by one thread that the writer owns.
// - A line that does not fit into the queue, or finds no memory, is dropped. Before the next line, the writer writes
// how
//   many were dropped:
//   "WARNING log lines were dropped: stderr is not read quickly enough, or memory was short num_lines=17".
// - A line that cannot be written (a full disk, a pipe without a reader) is lost. Before the next line that can be
//   written, the writer writes how many were lost:
//   "WARNING log lines were lost: stderr could not be written num_lines=17".
// - The file descriptor keeps its flags. O_NONBLOCK would apply to the open file, which other processes share, and
//   opening it again (/proc/self/fd/2) fails if another user made the pipe. Instead the writer's thread calls poll
//   first: a pipe that reports POLLOUT takes PIPE_BUF bytes without waiting. If another process fills the pipe in
//   between, the write waits, but only on this thread.
//
// Thread-safe. A process may have one LogWriter at a time.

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
    absl::Duration flush_limit = absl::Seconds(1);  // limit of the destructor's wait
  };

  explicit LogWriter(const Options& options);

  // Writes queued lines for at most flush_limit, then joins the thread. The thread may wait in a write (see above) for
  // any time. So a process that must end in time never destroys its writer, and calls Flush instead.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Queues the line, which includes its line end, if a writer exists; else writes it to stderr.
  static void Write(std::string line);

  // Counts a line that found no memory as dropped, if a writer exists.
  static void Drop();

  // Waits until every line queued before is written. Returns false if the limit passes first. Takes no lock, so a
  // signal handler may call it.
  static bool Flush(absl::Duration limit);

 private:
  struct Line {
    std::string text;
    int64_t num_dropped_before = 0;
  };

  void Push(std::string text);
  void Run();
  // Waits for a line, or a number of dropped lines, to write. Returns false once the writer is closed and has written
  // all.
  bool Take(Line* line);
  enum class Written { kWhole, kFailed, kStopped };
  // kFailed: the disk is full, or the pipe has no reader. kStopped: the writer was told to stop before the end.
  Written WriteAll(std::string_view text);
  void CountPending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const int stop_;  // an eventfd: readable when writing must stop
  absl::Mutex mutex_;
  std::deque<Line> lines_ ABSL_GUARDED_BY(mutex_);
  int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_dropped_ ABSL_GUARDED_BY(mutex_) = 0;  // since the last queued line
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;  // no more lines are accepted
  std::thread thread_;
};

}  // namespace voxserve
