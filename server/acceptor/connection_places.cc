#include "server/acceptor/connection_places.h"

namespace voxserve {
namespace {

// A connection that has sent nothing for this time gives way to any other; a handshake needs one round trip before it.
constexpr absl::Duration kSilent = absl::Seconds(1);

}  // namespace

void ConnectionPlaces::Add(Id id, const std::string& client, absl::Time now) {
  waiting_.insert(id);
  waiting_of_[client].insert(id);
  places_.Add(client, id, now);
}

void ConnectionPlaces::EndWait(Id id, const std::string& client) {
  waiting_.erase(id);
  const auto own = waiting_of_.find(client);
  if (own == waiting_of_.end()) return;
  own->second.erase(id);
  if (own->second.empty()) waiting_of_.erase(own);
}

void ConnectionPlaces::Remove(Id id, const std::string& client) {
  EndWait(id, client);
  places_.Remove(id);
}

std::optional<ConnectionPlaces::Id> ConnectionPlaces::OldestWaiting() const {
  if (waiting_.empty()) return std::nullopt;
  return *waiting_.begin();
}

std::optional<ConnectionPlaces::Id> ConnectionPlaces::OldestWaitingOf(const std::string& client) const {
  const auto own = waiting_of_.find(client);
  if (own == waiting_of_.end() || own->second.empty()) return std::nullopt;
  return *own->second.begin();
}

std::optional<ConnectionPlaces::Id> ConnectionPlaces::WhoGivesWay(const std::string& newcomer, absl::Time now,
                                                                  SharedPlaces::IdleSince idle_since) {
  const std::optional<Id> chosen = places_.WhoGivesWay(newcomer, now, idle_since);
  if (chosen.has_value()) return chosen;
  const std::optional<Id> oldest = OldestWaiting();
  return oldest.has_value() && now - idle_since(*oldest) >= kSilent ? oldest : std::nullopt;
}

}  // namespace voxserve
