#pragma once

// ProxiedPeers knows for whom trusted proxies have opened connections: by the peer of a connection, which is the
// proxy's address and port, the address that the proxy names (proxy_header.h).
//
// An entry stays after its connection has ended, since calls may still end and count for their client; the next
// connection from the same port replaces it. So a proxy's address has 65,536 entries at most, about 8 MB.
//
// Thread-safe.

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "server/sockets/peer.h"

namespace voxserve {

class ProxiedPeers {
 public:
  // A new connection: `peer` stands for `source`, or for itself if that is "". Both in the form of PeerOf.
  void Set(const std::string& peer, const std::string& source) {
    absl::MutexLock lock(&mutex_);
    if (source.empty()) {
      sources_.erase(peer);
    } else {
      sources_.insert_or_assign(peer, source);
    }
  }

  // Returns whom the peer stands for: what its proxy said, otherwise itself.
  std::string SourceOf(const std::string& peer) const {
    absl::ReaderMutexLock lock(&mutex_);
    const auto found = sources_.find(peer);
    return found == sources_.end() ? peer : found->second;
  }

  // Returns the client for which the peer's limits are counted.
  std::string ClientOf(const std::string& peer) const { return voxserve::ClientOf(SourceOf(peer)); }

 private:
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, std::string> sources_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
