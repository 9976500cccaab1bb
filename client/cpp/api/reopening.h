#pragma once

// Reopening, private to the library, decides whether a stream whose call has ended looks for another server, and when.
// Its owner is ReopeningStream. Not thread-safe.

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

  // Returns the time to wait before the stream is opened again, or nullopt if the stream must end with `status`, the
  // status of the call that ended: it is not UNAVAILABLE, it is a refusal by TLS, or the limit has passed.
  std::optional<absl::Duration> Delay(const absl::Status& status, absl::Time now);

 private:
  const absl::Duration limit_;
  absl::Time began_ = absl::InfiniteFuture();  // when the current call began
  std::optional<absl::Time> broken_since_;
  int num_failures_ = 0;  // calls in a row that brought no answer
};

}  // namespace voxserve::client
