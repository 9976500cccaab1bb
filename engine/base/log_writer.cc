#include "engine/base/log_writer.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <ctime>
#include <new>
#include <utility>

#include "absl/base/attributes.h"
#include "engine/base/fault.h"
#include "engine/base/logging.h"

namespace voxserve {
namespace {

ABSL_CONST_INIT absl::Mutex current_mutex(absl::kConstInit);
ABSL_CONST_INIT LogWriter* current ABSL_GUARDED_BY(current_mutex) = nullptr;

// The number of lines that are queued or being written, plus 1 while dropped lines have not been reported. Flush waits
// until it is 0.
std::atomic<int64_t> num_pending{0};

constexpr std::string_view kDroppedMessage =
    "log lines were dropped: stderr is not read quickly enough, or memory was short";

}  // namespace

LogWriter::LogWriter(const Options& options) : options_(options), stop_(eventfd(0, EFD_CLOEXEC)) {
  thread_ = std::thread([this] { Run(); });
  absl::MutexLock lock(&current_mutex);
  current = this;
}

LogWriter::~LogWriter() {
  {
    absl::MutexLock lock(&current_mutex);
    current = nullptr;
  }
  Flush(options_.flush_limit);
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_, &one, sizeof(one));
  thread_.join();
  close(stop_);
  num_pending = 0;
}

void LogWriter::Write(std::string line) {
  absl::ReaderMutexLock lock(&current_mutex);
  if (current != nullptr) return current->Push(std::move(line));
  // A single write keeps lines of several threads whole.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

bool LogWriter::Flush(absl::Duration limit) {
  constexpr timespec kPause = {.tv_sec = 0, .tv_nsec = 1'000'000};
  for (int64_t ms = absl::ToInt64Milliseconds(limit); num_pending > 0; --ms) {
    if (ms <= 0) return false;
    nanosleep(&kPause, nullptr);
  }
  return true;
}

void LogWriter::Drop() {
  absl::ReaderMutexLock lock(&current_mutex);
  if (current == nullptr) return;
  absl::MutexLock line_lock(&current->mutex_);
  ++current->num_dropped_;
  current->CountPending();
}

void LogWriter::Push(std::string text) {
  const int64_t num_bytes = static_cast<int64_t>(text.size() + sizeof(Line));
  absl::MutexLock lock(&mutex_);
  if (queued_bytes_ + num_bytes > options_.max_queued_bytes) {
    ++num_dropped_;
  } else {
    lines_.push_back({.text = std::move(text), .num_dropped_before = num_dropped_});
    num_dropped_ = 0;
    queued_bytes_ += num_bytes;
  }
  CountPending();
}

void LogWriter::Run() {
  Line line;
  int64_t num_lost = 0;  // number of lines that were lost after the last line that was written
  const auto write_line = [&](const std::string& text) {
    if (num_lost > 0) {
      // The text begins with a line end, which ends the line before if only a part of that was written.
      const std::string lost =
          LogLine(LogLevel::kWarning, "log lines were lost: stderr could not be written", {{"num_lines", num_lost}});
      switch (WriteAll("\n" + lost)) {
        case Written::kWhole:
          num_lost = 0;
          break;
        case Written::kFailed:
          ++num_lost;
          return true;
        case Written::kStopped:
          return false;
      }
    }
    const Written written = WriteAll(text);
    if (written == Written::kFailed) ++num_lost;
    return written != Written::kStopped;
  };
  while (Take(&line)) {
    try {
      if (line.num_dropped_before > 0 &&
          !write_line(LogLine(LogLevel::kWarning, kDroppedMessage, {{"num_lines", line.num_dropped_before}}))) {
        return;
      }
    } catch (const std::bad_alloc&) {
      num_lost += line.num_dropped_before;
    }
    try {
      if (!line.text.empty() && !write_line(line.text)) return;
    } catch (const std::bad_alloc&) {
      ++num_lost;
    }
  }
}

bool LogWriter::Take(Line* line) {
  absl::MutexLock lock(&mutex_);
  is_writing_ = false;
  CountPending();
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || !lines_.empty() || num_dropped_ > 0;
  };
  mutex_.Await(absl::Condition(&has_work));
  if (!lines_.empty()) {
    *line = std::move(lines_.front());
    lines_.pop_front();
    queued_bytes_ -= static_cast<int64_t>(line->text.size() + sizeof(Line));
  } else if (num_dropped_ > 0) {
    *line = {.text = "", .num_dropped_before = std::exchange(num_dropped_, 0)};
  } else {
    return false;
  }
  is_writing_ = true;
  CountPending();
  return true;
}

LogWriter::Written LogWriter::WriteAll(std::string_view text) {
  while (!text.empty()) {
    pollfd ends[2] = {{.fd = options_.descriptor, .events = POLLOUT, .revents = 0},
                      {.fd = stop_, .events = POLLIN, .revents = 0}};
    if (poll(ends, 2, -1) < 0) continue;  // interrupted
    if (ends[1].revents != 0) return Written::kStopped;
    if (FaultAt(FaultSite::kLog)) return Written::kFailed;
    const ssize_t size = write(options_.descriptor, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
    if (size < 0 && errno != EINTR && errno != EAGAIN) return Written::kFailed;
    if (size > 0) text.remove_prefix(static_cast<size_t>(size));
  }
  return Written::kWhole;
}

void LogWriter::CountPending() {
  num_pending = static_cast<int64_t>(lines_.size()) + (is_writing_ ? 1 : 0) + (num_dropped_ > 0 ? 1 : 0);
}

}  // namespace voxserve
