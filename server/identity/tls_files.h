#pragma once

// Reads and checks the files of --tls_certificate, --tls_key and --tls_client_ca, so that a bad one is refused with a
// clear error before gRPC or the HTTP library sees it. Pure functions, any thread.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace voxserve {

// Paths; all are empty without TLS. The files are in PEM form.
struct TlsPaths {
  std::string certificate;  // the server's certificate, then those between it and the root
  std::string key;          // the private key of the first certificate, not encrypted
  std::string client_ca;    // roots that clients' certificates must come from; empty: clients need none

  bool enabled() const { return !certificate.empty(); }
};

// The contents of these files.
struct TlsMaterial {
  std::string certificate;
  std::string key;
  std::string client_ca;

  bool operator==(const TlsMaterial&) const = default;
};

// Returns INVALID_ARGUMENT, which names the flag, the file and the reason.
absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsPaths& paths);

// INVALID_ARGUMENT naming the flag and the file: no certificate or key in it, an encrypted key, a certificate that has
// expired or is not valid yet at that time, a key that is not the certificate's, client roots that have all expired.
absl::Status CheckTlsMaterial(const TlsPaths& paths, const TlsMaterial& material, absl::Time now);

// Returns "subject, valid until TIME" of the server's certificate, for the log. The material has been checked.
std::string DescribeCertificate(const TlsMaterial& material);

}  // namespace voxserve
