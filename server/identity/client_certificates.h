#pragma once

// ClientCertificates looks again at the certificates that clients have shown in their handshakes, since connections and
// streams may outlive them. A certificate is refused when it or one that vouches for it has ended, or when its root was
// taken out of --tls_client_ca.
//
// - Cost: a certificate is verified once, and again when it may have ended or the roots have changed. Between, a check
//   is a look into a table of at most kMaxKnown certificates.
// - Errors: UNAUTHENTICATED, reason CERTIFICATE_REFUSED.
// - Threads: thread-safe. Nothing waits.

#include <grpcpp/security/auth_context.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/identity/tls_certificates.h"

namespace voxserve {

class ClientCertificates {
 public:
  static constexpr size_t kMaxKnown = 1024;

  // certificates: with asks_clients(); must outlive this object.
  explicit ClientCertificates(const TlsCertificates* certificates) : certificates_(*certificates) {}

  // connection: from grpc::ServerContextBase::auth_context().
  absl::Status Check(const grpc::AuthContext& connection) const;
  // certificate, chain: in PEM form, as for CheckClientCertificate (tls_files.h).
  absl::Status Check(std::string_view certificate, std::string_view chain) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Known {
    uint64_t version = 0;  // of certificates_, whose roots vouched for it
    absl::Time until;
  };

  const TlsCertificates& certificates_;
  mutable absl::Mutex mutex_;
  mutable absl::flat_hash_map<std::string, Known> known_ ABSL_GUARDED_BY(mutex_);  // by certificate; good ones alone
};

}  // namespace voxserve
