#pragma once

// TlsCertificates holds the certificates and keys that the server's TLS handshakes (gRPC and HTTP) use. When their
// files change, it uses the new contents.
//
// - Reload: Refresh reads the files. New connections then use the new certificate, and open connections keep theirs. If
//   a file is bad, the old contents stay in use, and one log line gives the reason.
// - gRPC 1.51.1's FileWatcherCertificateProvider is not used: it accepts a certificate whose key does not fit, and from
//   then on no handshake succeeds. Instead, gRPC calls this class at every handshake.
// - Threads: thread-safe. Refresh is called by one thread at a time.
// - Lifetime: a TlsCertificates must outlive every server that uses it or the credentials that it made.

#include <grpcpp/security/server_credentials.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/identity/tls_files.h"

namespace voxserve {

class TlsCertificates {
 public:
  // Returns the errors of ReadTlsFiles and CheckTlsMaterial.
  static absl::StatusOr<std::unique_ptr<TlsCertificates>> Create(TlsPaths paths);

  // Reads the files. If they have changed and are good, their contents come into use.
  void Refresh() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the certificates and keys in use. version() starts at 1 and grows by 1 with every change of them.
  std::shared_ptr<const TlsMaterial> material() const ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  // Returns whether clients must show a certificate.
  bool asks_clients() const { return !paths_.client_ca.empty(); }

  // Returns the credentials of one port of a gRPC server. If asks_clients(), a client without a certificate that comes
  // from --tls_client_ca gets no connection.
  std::shared_ptr<grpc::ServerCredentials> NewGrpcCredentials() const;

 private:
  TlsCertificates(TlsPaths paths, TlsMaterial material);

  const TlsPaths paths_;
  std::string last_problem_;  // the last logged problem; only Refresh uses it
  mutable absl::Mutex mutex_;
  std::shared_ptr<const TlsMaterial> material_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> version_{1};
};

}  // namespace voxserve
