#pragma once

// Helpers of the acceptor's tests. RawClient is a TCP client that sends and receives plain bytes. Watcher counts the
// events that an acceptor reports. Every wait has a time limit.

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
inline constexpr absl::Duration kLong = absl::Seconds(10);  // longer than any wait that succeeds

class RawClient {
 public:
  // Makes a socket with the local address `from`, not yet connected.
  explicit RawClient(const std::string& from = "127.0.0.1");

  // Returns a client that is connected to this port of loopback.
  static RawClient To(int port, const std::string& from = "127.0.0.1");

  bool Connect(int port);
  void Send(std::string_view bytes);
  void EndSending();

  // Receives until there are `size` bytes, the connection ends, or the timeout has passed. Returns the bytes.
  std::string Receive(size_t size, absl::Duration timeout = kLong);
  // Reads until the server ends the connection. Returns false if the server does not end it before the timeout.
  bool IsEndedWithin(absl::Duration timeout = kLong);

  // Returns this client's address in the form that gRPC uses for a peer.
  std::string peer() const;
  int get() const { return socket_.get(); }
  void Close() { socket_.Reset(); }
  void Reset();  // closes with RST, so that no socket stays in TIME_WAIT

 private:
  Descriptor socket_;
};

// Counts the events that an acceptor reports. Thread-safe.
class Watcher {
 public:
  // Returns the options, with callbacks that report to this object, which must outlive the acceptor.
  Acceptor::Options Watching(Acceptor::Options options);

  // AwaitOpen blocks until exactly `open` connections are open. AwaitClosed blocks until at least `count` connections
  // were closed for this reason. Both return false after the timeout.
  bool AwaitOpen(int64_t open, absl::Duration timeout = kLong);
  bool AwaitClosed(std::string_view reason, int64_t count, absl::Duration timeout = kLong);
  int64_t closed(std::string_view reason) const;
  int64_t closed() const;
  // Blocks until exactly `count` connections have ended without a call, as this constant of unused_connection.
  bool AwaitUnused(std::string_view reason, int64_t count, absl::Duration timeout = kLong);
  int64_t unused() const;

 private:
  mutable absl::Mutex mutex_;
  int64_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int64_t, std::less<>> closed_ ABSL_GUARDED_BY(mutex_);  // by reason
  std::map<std::string, int64_t, std::less<>> unused_ ABSL_GUARDED_BY(mutex_);  // by reason
};

int64_t NumOpenDescriptors();

// Lowers the process's soft limit of descriptors. The destructor restores the limit.
class LoweredDescriptorLimit {
 public:
  explicit LoweredDescriptorLimit(rlim_t limit);
  ~LoweredDescriptorLimit();

 private:
  rlimit before_ = {};
};

}  // namespace voxserve
