#pragma once

// TlsCertificates holds what the server's TLS handshakes use now, and takes over files that have changed.
//
// - Reload: Refresh reads the files; new connections then use the new certificate, and open ones go on as they are. Bad
//   files change nothing, and a log line says why, once.
// - gRPC 1.51.1's FileWatcherCertificateProvider is not used: it passes on a certificate whose key does not fit, and no
//   handshake succeeds from then on. gRPC's callback asks this class at every handshake instead.
// - Threads: thread-safe. Refresh is called by one thread at a time.
// - Lifetime: outlives every server that has credentials of it.

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

  // Looks at the files, and takes over what has changed.
  void Refresh() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the material in use. version() starts at 1 and grows with every change.
  std::shared_ptr<const TlsMaterial> material() const ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  // Returns whether clients must show a certificate.
  bool asks_clients() const { return !paths_.client_ca.empty(); }

  // Returns the credentials of one port of a gRPC server. Clients without a certificate of --tls_client_ca get no
  // connection.
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
