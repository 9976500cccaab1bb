#pragma once

// SharedPlaces knows who holds the places of a limited total (calls, streams, connections, regions), and chooses the
// place that gives way when the total is full and a newcomer wants one.
//
// - Networks: the clients are the leaves of a tree of networks (NetworksOf in server/sockets/peer.h), since an attacker
//   may have many addresses of a network. A client without an address, such as a token, is a branch of its own.
// - Idle places: only an idle place gives way. The owner says since when a place has been idle. So a stream that sends
//   points is never ended for one that has sent none.
// - Over its share: the newcomer's branch and the place's branch part at some network. If the place's branch has at
//   least two places more than the newcomer's, it is over its share. Its place gives way when it has been idle for
//   `over_share_idle`, the widest and largest network's first.
// - Newcomers with nothing: the place that has been idle longest gives way to a client that holds no place, when it has
//   been idle for `any_idle`. The sizes of their networks do not count. The time is long, so that many newcomers cannot
//   take the places of clients that are about to use them.
// - Places that are opened again: who ends its places and opens new ones before they have been idle for
//   `over_share_idle` would keep all of them. So a place of a network over its share that has been idle for
//   `newcomer_idle` gives way to a client that holds no place, if no other does.
// - A newcomer's own places never give way to it.
//
// Times are of one clock, which never goes back. Thread-compatible: the owner has a lock.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace voxserve {

class SharedPlaces {
 public:
  struct Options {
    absl::Duration over_share_idle = absl::Milliseconds(250);
    absl::Duration any_idle = absl::Seconds(10);
    absl::Duration newcomer_idle = absl::InfiniteDuration();
  };
  using Id = uint64_t;  // chosen by the owner; of one place at a time
  // Returns since when the place has been idle: InfiniteFuture while it is in use, a time ahead if it becomes idle
  // then. The result for a place never becomes earlier, except after InfiniteFuture, and then it is not before that
  // call.
  using IdleSince = absl::FunctionRef<absl::Time(Id)>;

  explicit SharedPlaces(const Options& options) : options_(options) {}

  // Adds a place of the client (ClientOf, or another name of a client). If an allocation fails (std::bad_alloc), the
  // place is not added.
  void Add(const std::string& client, Id id, absl::Time now);
  // Takes out a place. Ignores one that is not there.
  void Remove(Id id);

  int64_t size() const { return static_cast<int64_t>(places_.size()); }
  int64_t NumOf(const std::string& client) const;

  // Returns the place that gives way to the newcomer; nullopt if none does. The place is still there afterwards.
  std::optional<Id> WhoGivesWay(const std::string& newcomer, absl::Time now, IdleSince idle_since);

 private:
  using Order = std::set<std::pair<absl::Time, Id>>;  // by a time that is not after the one since which it is idle
  struct Branch {
    Branch* parent = nullptr;  // null: the root
    std::string name;
    int64_t num_places = 0;
    std::map<std::string, std::unique_ptr<Branch>> branches;
    std::set<std::pair<int64_t, const Branch*>> by_size;
    Order places;  // of a client
  };
  struct Place {
    Branch* client = nullptr;
    absl::Time in_client;  // its key in Branch::places
    absl::Time in_all;     // its key in idlest_
  };

  // Returns the first place of the order that has been idle for `least`, and corrects the order on the way. key: the
  // member of Place that has the place's key.
  std::optional<Id> LongestIdle(Order* order, absl::Time Place::*key, absl::Duration least, absl::Time now,
                                IdleSince idle_since);
  // Searches the places below a branch, the largest networks first. path: the names of the newcomer's branches below
  // this one, up to path_end; then only places of networks over their share count. null: the newcomer is not below this
  // branch, and all places count. least: how long a place must have been idle.
  std::optional<Id> SearchOverShare(const Branch& branch, const std::string* path, const std::string* path_end,
                                    absl::Duration least, int* num_looks, absl::Time now, IdleSince idle_since);
  void Count(Branch* client, int64_t change);

  const Options options_;
  Branch root_;
  std::unordered_map<Id, Place> places_;
  Order idlest_;  // all places
};

}  // namespace voxserve
