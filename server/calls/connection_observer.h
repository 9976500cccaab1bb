#pragma once

// ConnectionObserver learns what the calls of each connection do, so that the server can close connections that cost it
// too much. The server implements it. Any thread may call its functions, which must not block. peer: as
// grpc::ServerContext::peer() names a connection.

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace voxserve {

class ConnectionObserver {
 public:
  virtual ~ConnectionObserver() = default;

  // Returns the address for which a connection counts: the peer itself, or the address that a trusted proxy has named
  // for the connection (server/sockets/proxied_peers.h).
  virtual std::string SourceOf(const std::string& peer) const = 0;
  // Returns false if the peer's connection has ended. It may end right after that.
  virtual bool IsOpen(const std::string& peer) const = 0;
  // Tells that the peer's connection has ended, as the owner of the observer does for every connection that was open.
  virtual void OnGone(const std::string& peer) = 0;
  // Called when a call of this peer begins.
  virtual void OnCall(const std::string& peer) = 0;
  // Called when a message of this many bytes has arrived from this peer. is_first: it is the first message of its call.
  virtual void OnMessage(const std::string& peer, int64_t bytes, bool is_first) = 0;
  // Called when a call of this peer has ended that had a request or points. The connection does not count as idle
  // before `until` (by SteadyNow).
  virtual void OnUsed(const std::string& peer, absl::Time until) = 0;
  // Called when no call of this peer reads its messages any more.
  virtual void OnIdle(const std::string& peer) = 0;
  // Called when a call of this peer is refused. has_work: it is refused because the server drains, while the peer still
  // has an open request or stream.
  virtual void OnRefusedCall(const std::string& peer, bool has_work) = 0;
  // Called when a call of this peer ended without a message soon after it began.
  virtual void OnUselessCall(const std::string& peer) = 0;
  // Called when the certificate with which this peer connected is refused by now: its connection should end.
  virtual void OnRefusedCertificate(const std::string& peer) = 0;
  // Called when this peer cancelled or left a call, of which a message had arrived, soon after the call began.
  virtual void OnCancelledCall(const std::string& peer) = 0;
};

}  // namespace voxserve
