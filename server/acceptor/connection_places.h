#pragma once

// ConnectionPlaces knows which client has how many connections, and which of these still wait for their first bytes. It
// names the connection that gives way to a new one. Times are of one clock, which never goes back. Thread-compatible.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "absl/time/time.h"
#include "server/sockets/shared_places.h"

namespace voxserve {

class ConnectionPlaces {
 public:
  using Id = SharedPlaces::Id;  // grows with every arrival, never used twice

  explicit ConnectionPlaces(const SharedPlaces::Options& options) : places_(options) {}

  // Adds a connection of the client that waits for its first bytes. If an allocation fails (std::bad_alloc), Remove
  // takes out what is there of it.
  void Add(Id id, const std::string& client, absl::Time now);
  // The connection's first bytes have come.
  void EndWait(Id id, const std::string& client);
  // Takes out a connection of the client. Ignores one that is not there. Allocates nothing.
  void Remove(Id id, const std::string& client);

  int64_t NumOf(const std::string& client) const { return places_.NumOf(client); }
  // Return the connection that has waited longest for its first bytes, of all or of a client; nullopt if none waits.
  std::optional<Id> OldestWaiting() const;
  std::optional<Id> OldestWaitingOf(const std::string& client) const;

  // Returns the connection that gives way to a new one of the client when there are too many in all: the one that
  // SharedPlaces chooses, or else the oldest that has sent nothing for a second. nullopt: none does.
  std::optional<Id> WhoGivesWay(const std::string& newcomer, absl::Time now, SharedPlaces::IdleSince idle_since);

 private:
  SharedPlaces places_;  // of all connections
  std::set<Id> waiting_;
  // By client. A set is empty only from an Add that failed until its Remove.
  std::unordered_map<std::string, std::set<Id>> waiting_of_;
};

}  // namespace voxserve
