#pragma once

// ProxiedPeers knows for whom trusted proxies have opened connections. It maps the peer of a connection, which is the
// proxy's address and port, to the source address that the proxy names (proxy_header.h). The acceptor writes it, and
// the server's limits per client read it.
//
// An entry stays after its connection has ended, since calls of the connection may end later and must count for their
// client. The next connection from the same port replaces the entry. So a proxy's address has at most 65,536 entries,
// about 8 MB.
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
  // Tells that a new connection of `peer` stands for `source`, or for `peer` itself if `source` is "". Both have the
  // form of PeerOf.
  void Set(const std::string& peer, const std::string& source) {
    absl::MutexLock lock(&mutex_);
    if (source.empty()) {
      sources_.erase(peer);
    } else {
      sources_.insert_or_assign(peer, source);
    }
  }

  // Returns the peer for which `peer` stands: the source that its proxy named, otherwise `peer` itself.
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
