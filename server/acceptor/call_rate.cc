#include "server/acceptor/call_rate.h"

#include <algorithm>
#include <new>
#include <utility>

namespace voxserve {

bool CallRate::Spend(const std::string& client, double tokens) {
  const absl::Time now = options_.now();
  const absl::Duration token = absl::Seconds(1) / options_.per_second;
  const absl::Time empty = now + token * options_.burst;  // the time when a bucket without tokens is full again
  absl::MutexLock lock(&mutex_);
  while (!clients_by_full_at_.empty() && clients_by_full_at_.begin()->first <= now) {
    Forget(std::string(clients_by_full_at_.begin()->second));
  }
  absl::Time full_at = now;
  if (const auto found = full_at_.find(client); found != full_at_.end()) {
    full_at = std::min(found->second, empty);  // if the clock was set back, the bucket is empty at worst
  }
  const bool has_tokens = full_at + tokens * token <= empty;
  if (has_tokens) full_at += tokens * token;
  Remember(client, full_at);
  return has_tokens;
}

void CallRate::Earn(const std::string& client, double tokens) {
  const absl::Duration token = absl::Seconds(1) / options_.per_second;
  absl::MutexLock lock(&mutex_);
  const auto found = full_at_.find(client);
  if (found == full_at_.end()) return;
  const absl::Time full_at = found->second - tokens * token;
  if (full_at <= options_.now()) {
    Forget(client);
  } else {
    Remember(client, full_at);
  }
}

void CallRate::SpendAll(const std::string& client) {
  const absl::Duration token = absl::Seconds(1) / options_.per_second;
  absl::MutexLock lock(&mutex_);
  Remember(client, options_.now() + token * options_.burst);
}

void CallRate::Remember(const std::string& client, absl::Time full_at) {
  if (const auto known = full_at_.find(client); known != full_at_.end()) {
    // Allocates nothing, so a client's bucket is not filled because memory is short.
    auto node = clients_by_full_at_.extract({known->second, client});
    node.value().first = known->second = full_at;
    clients_by_full_at_.insert(std::move(node));
    return;
  }
  if (static_cast<int64_t>(full_at_.size()) >= options_.max_clients) {
    Forget(std::string(clients_by_full_at_.begin()->second));
  }
  const auto added = clients_by_full_at_.emplace(full_at, client).first;
  try {
    full_at_.emplace(client, full_at);
  } catch (const std::bad_alloc&) {
    clients_by_full_at_.erase(added);
    throw;
  }
}

bool CallRate::HasTokens(const std::string& client) const {
  const absl::Time now = options_.now();
  const absl::Duration token = absl::Seconds(1) / options_.per_second;
  const absl::Time latest = now + token * (options_.burst - options_.burst / 2);
  const absl::Time empty = now + token * options_.burst;
  absl::MutexLock lock(&mutex_);
  const auto found = full_at_.find(client);
  // If the bucket is full only after `empty`, the clock was set back. The number of missing tokens is then unknown.
  return found == full_at_.end() || found->second <= latest || found->second > empty;
}

void CallRate::Forget(const std::string& client) {
  const auto found = full_at_.find(client);
  clients_by_full_at_.erase({found->second, client});
  full_at_.erase(found);
}

int64_t CallRate::num_clients() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(full_at_.size());
}

}  // namespace voxserve
