#include "server/calls/client_connections.h"

#include <utility>

namespace voxserve {

void ClientConnections::OnCall(const std::string& client, const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  if (by_peer_[peer].insert(client).second) clients_[client].peers.insert(peer);
}

std::vector<std::string> ClientConnections::OnGone(const std::string& peer, absl::Time now) {
  std::vector<std::string> gone;
  absl::MutexLock lock(&mutex_);
  const auto found = by_peer_.find(peer);
  if (found == by_peer_.end()) return gone;
  for (const std::string& name : found->second) {
    Client& client = clients_[name];
    client.peers.erase(peer);
    client.gone_at = now;
    if (client.peers.empty()) gone.push_back(name);
  }
  by_peer_.erase(found);
  return gone;
}

bool ClientConnections::ForgetGone(const std::string& client, absl::Time since) {
  absl::MutexLock lock(&mutex_);
  const auto found = clients_.find(client);
  if (found == clients_.end() || !found->second.peers.empty() || found->second.gone_at > since) return false;
  clients_.erase(found);
  return true;
}

}  // namespace voxserve
