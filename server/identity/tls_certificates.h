#pragma once

// TlsCertificates holds the certificates and keys that the server's TLS handshakes (gRPC and HTTP) use. When their
// files change, it uses the new contents.
//
// - Reload: Refresh reads the files. New connections then use the new certificate, and open connections keep theirs. If
//   a file is bad, the old contents stay in use, and one log line gives the reason.
// - End: from kWarnBefore before the certificate or the last client root ends, Refresh logs a warning each day, and an
//   error each day from its end on.
// - gRPC 1.51.1's FileWatcherCertificateProvider is not used: it accepts a certificate whose key does not fit, and from
//   then on no handshake succeeds. Instead, gRPC calls this class at every handshake.
// - Threads: thread-safe. Refresh is called by one thread at a time.
// - Lifetime: a TlsCertificates must outlive every server that uses it or the credentials that it made.

#include <grpcpp/security/server_credentials.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/identity/tls_files.h"

namespace voxserve {

class TlsCertificates {
 public:
  static constexpr absl::Duration kWarnBefore = absl::Hours(14 * 24);

  // Returns the errors of ReadTlsFiles and CheckTlsMaterial. now: the wall clock.
  static absl::StatusOr<std::unique_ptr<TlsCertificates>> Create(TlsPaths paths,
                                                                 std::function<absl::Time()> now = absl::Now);

  // Reads the files. If they have changed and are good, their contents come into use. Tells of an end that is near.
  void Refresh() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the certificates and keys in use. version() starts at 1 and grows by 1 with every change of them.
  std::shared_ptr<const TlsMaterial> material() const ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t version() const { return version_.load(std::memory_order_acquire); }
  // Returns whether clients must show a certificate.
  bool asks_clients() const { return !paths_.client_ca.empty(); }
  // The ends of those in use (tls_files.h). Called by the thread that calls Refresh, or before it starts.
  absl::Time certificate_end() const { return certificate_.end; }
  absl::Time client_roots_end() const { return client_roots_.end; }
  absl::Time now() const { return now_(); }

  // Returns the credentials of one port of a gRPC server. If asks_clients(), a client without a certificate that comes
  // from --tls_client_ca gets no connection.
  std::shared_ptr<grpc::ServerCredentials> NewGrpcCredentials() const;

 private:
  // A file that ends, and what the log has told of it.
  struct Ending {
    absl::Time end = absl::InfiniteFuture();
    absl::Time told = absl::InfinitePast();  // when a line was last written, by now_
    bool told_as_over = false;               // that line said that it has ended
  };

  TlsCertificates(TlsPaths paths, TlsMaterial material, std::function<absl::Time()> now);
  void TellEnd(const std::string& what, const std::string& effect, const std::string& path, Ending* ending) const;

  const TlsPaths paths_;
  const std::function<absl::Time()> now_;
  // Only Refresh uses these.
  std::string last_problem_;  // the last logged problem
  Ending certificate_;
  Ending client_roots_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const TlsMaterial> material_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> version_{1};
};

}  // namespace voxserve
