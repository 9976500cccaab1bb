#include "server/sockets/shared_places.h"

#include <utility>
#include <vector>

#include "server/sockets/peer.h"

namespace voxserve {
namespace {

// One search looks at this many clients at most. More of them cost more time than a call does.
constexpr int kMaxLooks = 512;

std::vector<std::string> PathOf(const std::string& client) {
  std::vector<std::string> path = NetworksOf(client);
  path.push_back(client);
  return path;
}

}  // namespace

void SharedPlaces::Count(Branch* client, int64_t change) {
  for (Branch* branch = client; branch->parent != nullptr; branch = branch->parent) {
    auto node = branch->parent->by_size.extract({branch->num_places, branch});
    branch->num_places += change;
    node.value().first = branch->num_places;
    branch->parent->by_size.insert(std::move(node));
  }
  for (Branch* branch = client; branch->parent != nullptr && branch->num_places == 0;) {
    Branch* const parent = branch->parent;
    parent->by_size.erase({0, branch});
    parent->branches.erase(parent->branches.find(branch->name));
    branch = parent;
  }
}

void SharedPlaces::Add(const std::string& client, Id id, absl::Time now) {
  Branch* branch = &root_;
  for (const std::string& name : PathOf(client)) {
    std::unique_ptr<Branch>& next = branch->branches[name];
    if (next == nullptr) next = std::make_unique<Branch>(Branch{.parent = branch, .name = name});
    branch->by_size.emplace(next->num_places, next.get());
    branch = next.get();
  }
  Order in_client = {{now, id}};
  Order in_all = {{now, id}};
  places_[id] = {.client = branch, .in_client = now, .in_all = now};
  // From here on nothing is allocated, so nothing can fail.
  branch->places.merge(in_client);
  idlest_.merge(in_all);
  Count(branch, 1);
}

void SharedPlaces::Remove(Id id) {
  const auto found = places_.find(id);
  if (found == places_.end()) return;
  const Place place = found->second;
  places_.erase(found);
  place.client->places.erase({place.in_client, id});
  idlest_.erase({place.in_all, id});
  Count(place.client, -1);
}

int64_t SharedPlaces::NumOf(const std::string& client) const {
  const Branch* branch = &root_;
  for (const std::string& name : PathOf(client)) {
    const auto next = branch->branches.find(name);
    if (next == branch->branches.end() || next->second == nullptr) return 0;
    branch = next->second.get();
  }
  return branch->num_places;
}

std::optional<SharedPlaces::Id> SharedPlaces::LongestIdle(Order* order, absl::Time Place::*key, absl::Duration least,
                                                          absl::Time now, IdleSince idle_since) {
  for (size_t num_left = order->size(); num_left > 0; --num_left) {
    const auto [since, id] = *order->begin();
    if (since + least > now) break;
    const absl::Time truly_since = idle_since(id);
    if (truly_since + least <= now) return id;
    // A place in use becomes idle now at the earliest.
    const absl::Time corrected = truly_since == absl::InfiniteFuture() ? now : truly_since;
    auto node = order->extract(order->begin());  // so that nothing is allocated
    node.value() = {corrected, id};
    order->insert(std::move(node));
    places_.at(id).*key = corrected;
  }
  return std::nullopt;
}

std::optional<SharedPlaces::Id> SharedPlaces::SearchOverShare(const Branch& branch, const std::string* path,
                                                              const std::string* path_end, absl::Duration least,
                                                              int* num_looks, absl::Time now, IdleSince idle_since) {
  if (branch.branches.empty()) {
    const bool is_newcomer = path != nullptr;
    if (is_newcomer || --*num_looks < 0) return std::nullopt;
    Order* const places = &const_cast<Branch&>(branch).places;
    return LongestIdle(places, &Place::in_client, least, now, idle_since);
  }
  const bool is_on_path = path != nullptr && path != path_end;
  const auto own = is_on_path ? branch.branches.find(*path) : branch.branches.end();
  const Branch* const own_branch = own == branch.branches.end() ? nullptr : own->second.get();
  const int64_t num_own = own_branch == nullptr ? 0 : own_branch->num_places;
  for (auto entry = branch.by_size.rbegin(); entry != branch.by_size.rend() && *num_looks > 0; ++entry) {
    const auto [num_places, other] = *entry;
    const bool is_own = other == own_branch;
    if (is_on_path && !is_own && num_places <= num_own + 1) {
      // The rest is no larger; only the newcomer's own branch, which may be smaller, is left.
      if (own_branch == nullptr || num_own > num_places) break;
      continue;
    }
    const std::optional<Id> found =
        SearchOverShare(*other, is_own ? path + 1 : nullptr, path_end, least, num_looks, now, idle_since);
    if (found.has_value()) return found;
  }
  return std::nullopt;
}

std::optional<SharedPlaces::Id> SharedPlaces::WhoGivesWay(const std::string& newcomer, absl::Time now,
                                                          IdleSince idle_since) {
  const std::vector<std::string> path = PathOf(newcomer);
  const auto search_over_share = [&](absl::Duration least) {
    int num_looks = kMaxLooks;
    return SearchOverShare(root_, path.data(), path.data() + path.size(), least, &num_looks, now, idle_since);
  };
  std::optional<Id> found = search_over_share(options_.over_share_idle);
  if (found.has_value() || NumOf(newcomer) > 0) return found;
  found = LongestIdle(&idlest_, &Place::in_all, options_.any_idle, now, idle_since);
  if (found.has_value() || options_.newcomer_idle >= options_.over_share_idle) return found;
  return search_over_share(options_.newcomer_idle);
}

}  // namespace voxserve
