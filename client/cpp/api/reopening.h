#pragma once

// Private to the library: decides whether and when a stream whose call ended looks for another server. Not thread-safe.

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace voxserve::client {

class Reopening {
 public:
  // limit: how long to look for a server; 0: a stream ends with its call.
  explicit Reopening(absl::Duration limit) : limit_(limit) {}

  bool is_wanted() const { return limit_ > absl::ZeroDuration(); }

  // Tells that a call begins.
  void Begin(absl::Time now) { began_ = now; }

  // Tells that the server has answered a frame.
  void Hear();

  // Returns the time to wait before the stream is opened again; nothing if the status of its call is its end.
  std::optional<absl::Duration> Delay(const absl::Status& status, absl::Time now);

 private:
  const absl::Duration limit_;
  absl::Time began_ = absl::InfiniteFuture();  // the current call
  std::optional<absl::Time> broken_since_;
  int num_failures_ = 0;  // calls in a row that brought no answer
};

}  // namespace voxserve::client
