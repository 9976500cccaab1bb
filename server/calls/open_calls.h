#pragma once

// OpenCalls owns every open call, and bounds the number of open calls: of all clients together, and of each client. A
// call is open from the arrival of its headers, even without a request, until gRPC has finished with it (Call::OnDone).
//
// A client is Call::client(), the name under which limits are counted. A peer is Call::peer(), one connection.
//
// Threads: thread-safe. Only AwaitClosed waits.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"

namespace voxserve {

class Call;

enum class CallKind : uint8_t {
  kRequest,  // a call with one request; a drain (the server's shutdown) waits for its answer
  kStream,   // InferStream and ModelStreamInfer; a drain waits for their end
  kInfo,     // health, reflection, load reports and the like; served during a drain, which does not wait for them
};

class OpenCalls {
 public:
  struct Options {
    // max_client_calls and max_client_streams are multiplied by the client's share (Caller::share).
    int64_t max_calls = 4096;            // kRequest and kStream together, of all clients
    int64_t max_client_calls = 1024;     // a client with this many calls of all kinds gets no kRequest or kStream
    int64_t max_client_info_calls = 64;  // kInfo of one client; all clients together have no limit
    int64_t max_streams = 1024;          // kStream of all clients
    int64_t max_client_streams = 256;    // kStream of one client
  };

  explicit OpenCalls(const Options& options) : options_(options) {}

  // Takes ownership of the call until Close. Errors:
  // - UNAVAILABLE (DRAINING) after StartDraining, but for kInfo.
  // - RESOURCE_EXHAUSTED with a retry delay: CLIENT_LIMIT if the client has reached its limit, QUEUE_FULL if all
  //   clients together have.
  absl::Status Open(std::shared_ptr<Call> call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close(const std::shared_ptr<Call>& call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Refuses requests and streams from now on, and calls Drain of the open ones.
  void StartDraining() ABSL_LOCKS_EXCLUDED(mutex_);

  // Blocks until every request and stream has been closed, or until the deadline (by SteadyNow). Returns the number of
  // requests and streams that are still open.
  int64_t AwaitClosed(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // Blocks until no call is updating (Call::is_updating), or until the deadline (by SteadyNow).
  void AwaitUpdated(absl::Time deadline) const ABSL_LOCKS_EXCLUDED(mutex_);

  // Records that the call no longer reads its client's messages. A call counts as reading from Open until EndReading or
  // Close. Returns false if no other call of the same peer reads.
  bool EndReading(const std::shared_ptr<Call>& call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns true if a request or a stream of the peer is open.
  bool HasWork(const std::string& peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the number of the peer's open calls that still read its messages.
  int64_t NumReading(const std::string& peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns how many of them are kInfo. Their messages are small.
  int64_t NumReadingInfo(const std::string& peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t num_requests() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t num_streams() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Counts {
    int64_t calls = 0;  // of all kinds
    int64_t streams = 0;
    int64_t info = 0;
  };
  struct PeerCounts {
    int64_t calls = 0;         // of all kinds
    int64_t reading = 0;       // of all kinds
    int64_t reading_info = 0;  // kInfo among them
    int64_t info = 0;
  };

  static void EndReading(CallKind kind, PeerCounts& of_peer);
  // Returns why the client may not open a call of this kind. share: Caller::share of the client.
  absl::Status Check(CallKind kind, double share, const Counts& of_client) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  SteadyCondVar emptied_;  // no request and no stream is open
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_streams_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::shared_ptr<Call>, bool> calls_ ABSL_GUARDED_BY(mutex_);  // true: the call is reading
  absl::flat_hash_map<std::string, Counts> clients_ ABSL_GUARDED_BY(mutex_);        // only clients with calls
  absl::flat_hash_map<std::string, PeerCounts> peers_ ABSL_GUARDED_BY(mutex_);      // only peers with calls
};

}  // namespace voxserve
