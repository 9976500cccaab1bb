#pragma once

// Shared by the tests of the acceptor: a client that speaks bytes, and what watches an acceptor. Every wait has a
// limit.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/acceptor/acceptor.h"
#include "server/sockets/descriptor.h"

namespace voxserve {

inline constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
inline constexpr absl::Duration kLong = absl::Seconds(10);  // what nothing that works takes

class RawClient {
 public:
  // A socket that is not connected yet, from that address.
  explicit RawClient(const std::string& from = "127.0.0.1");

  // A connected one.
  static RawClient To(int port, const std::string& from = "127.0.0.1");

  bool Connect(int port);
  void Send(std::string_view bytes);
  void EndSending();

  // The bytes that come until there are so many, the connection ends, or the time is over.
  std::string Receive(size_t size, absl::Duration timeout = kLong);
  // Reads what comes until the server ends the connection. False where it does not in time.
  bool IsEndedWithin(absl::Duration timeout = kLong);

  std::string peer() const;  // as gRPC writes it
  int get() const { return socket_.get(); }
  void Close() { socket_.Reset(); }
  void Reset();  // closes with RST, and so leaves no TIME_WAIT

 private:
  Descriptor socket_;
};

// Counts what an acceptor reports. Thread-safe.
class Watcher {
 public:
  // The options with hooks to this.
  Acceptor::Options Watching(Acceptor::Options options);

  bool AwaitOpen(int64_t open, absl::Duration timeout = kLong);
  bool AwaitClosed(std::string_view reason, int64_t count, absl::Duration timeout = kLong);
  int64_t closed(std::string_view reason) const;
  int64_t closed() const;

 private:
  mutable absl::Mutex mutex_;
  int64_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int64_t, std::less<>> closed_ ABSL_GUARDED_BY(mutex_);  // by reason
};

int64_t NumOpenDescriptors();

// Sets the soft limit of descriptors while it lives.
class LoweredDescriptorLimit {
 public:
  explicit LoweredDescriptorLimit(rlim_t limit);
  ~LoweredDescriptorLimit();

 private:
  rlimit before_ = {};
};

}  // namespace voxserve
