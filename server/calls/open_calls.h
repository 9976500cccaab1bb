#pragma once

// OpenCalls owns every open call, and bounds the number of open calls: of all clients together, and of each client. A
// call is open from the arrival of its headers, even without a request, until gRPC has finished with it (Call::OnDone).
//
// At a limit for all clients together, an idle call gives way to a newcomer (SharedPlaces): a stream without points, a
// call without its request, a call of health and the like. It ends with RESOURCE_EXHAUSTED (GAVE_WAY) and has no place
// from then on.
//
// A client is Call::client(), the name under which limits are counted. A peer is Call::peer(), one connection.
//
// Threads: thread-safe. Only AwaitClosed waits.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/base/steady_time.h"
#include "server/sockets/shared_places.h"

namespace voxserve {

class Call;

enum class CallKind : uint8_t {
  kRequest,  // a call with one request; a drain (the server's shutdown) waits for its answer
  kStream,   // InferStream and ModelStreamInfer; a drain waits for their end
  kInfo,     // health, reflection, load reports and the like; served during a drain, which does not wait for them
};

// The numbers of calls that still read their client's messages.
struct ReadingCalls {
  int64_t work = 0;  // kRequest and kStream
  int64_t info = 0;  // kInfo, whose messages are small

  int64_t all() const { return work + info; }
};

class OpenCalls {
 public:
  struct Options {
    // max_client_calls and max_client_streams are multiplied by the client's share (Caller::share).
    int64_t max_calls = 4096;            // kRequest and kStream together, of all clients
    int64_t max_client_calls = 1024;     // a client with this many calls of all kinds gets no kRequest or kStream
    int64_t max_info_calls = 1024;       // kInfo of all clients
    int64_t max_client_info_calls = 64;  // kInfo of one client
    int64_t max_streams = 1024;          // kStream of all clients
    int64_t max_client_streams = 256;    // kStream of one client
    // How long a call is idle before it gives way. Who cancels calls sooner than after newcomer_idle, to open them
    // again, loses its connection (Call::CountUseless).
    SharedPlaces::Options places = {.newcomer_idle = absl::Milliseconds(25)};
  };

  explicit OpenCalls(const Options& options)
      : options_(options), work_places_(options.places), stream_places_(options.places), info_places_(options.places) {}

  // Takes ownership of the call until Close. Errors:
  // - UNAVAILABLE (DRAINING) after StartDraining, but for kInfo.
  // - RESOURCE_EXHAUSTED with a retry delay: CLIENT_LIMIT if the client has reached its limit, QUEUE_FULL if all
  //   clients together have and no call gives way.
  absl::Status Open(std::shared_ptr<Call> call) ABSL_LOCKS_EXCLUDED(mutex_);
  void Close(const std::shared_ptr<Call>& call) ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls Call::LookAtIdentity of all open calls. Called by one thread at a time.
  void LookAtIdentities() ABSL_LOCKS_EXCLUDED(mutex_);

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
  // Returns since when the peer's requests and streams have been idle (Call::idle_since), the latest time of them;
  // InfinitePast if it has none.
  absl::Time IdleSince(const std::string& peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the numbers of the peer's open calls that still read its messages.
  ReadingCalls Reading(const std::string& peer) const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t num_requests() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t num_streams() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Counts {
    int64_t calls = 0;  // of all kinds
    int64_t streams = 0;
    int64_t info = 0;
  };
  struct PeerCounts {
    ReadingCalls reading;
    absl::flat_hash_map<Call*, CallKind> calls;
    int64_t info = 0;
  };
  struct OpenCall {
    enum class State : uint8_t { kOpening, kOpen, kGaveWay };
    State state = State::kOpening;
    bool is_reading = false;
  };

  // Adds the change, 1 or -1, to the reading calls of this kind.
  static void CountReading(CallKind kind, int64_t change, PeerCounts& of_peer);
  // Returns why the client may not open a call of this kind, but for the limits of all clients together. share:
  // Caller::share of the client.
  absl::Status CheckClient(CallKind kind, double share, const Counts& of_client) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Makes places for a call of this kind at the limits of all clients together. Appends the calls that give way, which
  // have no place any more.
  absl::Status MakePlaces(CallKind kind, const std::string& client, std::vector<std::shared_ptr<Call>>* gave_way)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakePlaceIn(SharedPlaces* places, int64_t limit, const char* what, const std::string& client,
                           std::vector<std::shared_ptr<Call>>* gave_way) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Open, but for the calls that give way, which are ended without the lock.
  absl::Status Admit(const std::shared_ptr<Call>& call, std::vector<std::shared_ptr<Call>>* gave_way)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void AddPlaces(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RemovePlaces(const Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts the call for its client, which has counts already, and in all. change: 1 or -1.
  void Count(const Call& call, int64_t change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::shared_ptr<Call>> All() const ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  mutable absl::Mutex mutex_;
  SteadyCondVar emptied_;  // no request and no stream is open
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_requests_ ABSL_GUARDED_BY(mutex_) = 0;  // those that have given way do not count in these two
  int64_t num_streams_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_leaving_ ABSL_GUARDED_BY(mutex_) = 0;   // calls that have given way and have not ended
  SharedPlaces work_places_ ABSL_GUARDED_BY(mutex_);  // of requests and streams; an id is the address of a Call
  SharedPlaces stream_places_ ABSL_GUARDED_BY(mutex_);
  SharedPlaces info_places_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::shared_ptr<Call>, OpenCall> calls_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Counts> clients_ ABSL_GUARDED_BY(mutex_);    // only clients with calls
  absl::flat_hash_map<std::string, PeerCounts> peers_ ABSL_GUARDED_BY(mutex_);  // only peers with calls
};

}  // namespace voxserve
