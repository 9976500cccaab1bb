#pragma once

// Shared by the tests of the acceptor: a client that sends and receives plain bytes, and a class that counts what an
// acceptor reports. Every wait has a limit.

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

  // Returns the bytes received until there are `size` of them, the connection ends, or the time is over.
  std::string Receive(size_t size, absl::Duration timeout = kLong);
  // Reads until the server ends the connection. Returns false if it does not end in time.
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
  // Returns the options, with hooks that report to this object.
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

// Lowers the soft limit of descriptors until it is destroyed.
class LoweredDescriptorLimit {
 public:
  explicit LoweredDescriptorLimit(rlim_t limit);
  ~LoweredDescriptorLimit();

 private:
  rlimit before_ = {};
};

}  // namespace voxserve
