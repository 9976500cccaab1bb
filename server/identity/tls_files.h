#pragma once

// These functions read and check the files of --tls_certificate, --tls_key and --tls_client_ca, so that a bad file is
// refused with a clear error before gRPC or the HTTP library sees it. Any thread may call them.

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace voxserve {

// The paths of the files, which are in PEM form. All are empty without TLS.
struct TlsPaths {
  std::string certificate;  // the server's certificate, then the intermediate ones
  std::string key;          // the private key of the first certificate, not encrypted
  std::string client_ca;    // roots of clients' certificates; empty: clients need no certificate

  bool enabled() const { return !certificate.empty(); }
};

// The contents of the files that TlsPaths names.
struct TlsMaterial {
  std::string certificate;
  std::string key;
  std::string client_ca;

  bool operator==(const TlsMaterial&) const = default;
};

// Reads the files. Returns the errors of ReadSmallFile (small_file.h): INVALID_ARGUMENT, which names the flag, the file
// and the reason.
absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsPaths& paths);

// Returns INVALID_ARGUMENT, which names the flag and the file, if a file has no certificate or key or a broken one, if
// the key is encrypted or does not belong to the server's certificate, if the server's certificate is not valid at the
// time `now`, or if all client roots have expired.
absl::Status CheckTlsMaterial(const TlsPaths& paths, const TlsMaterial& material, absl::Time now);

// Returns "SUBJECT, valid until TIME" of the server's certificate, for the log. CheckTlsMaterial must have accepted the
// material.
std::string DescribeCertificate(const TlsMaterial& material);

// Return when the server's certificate ends, and when the last of the client roots does. InfiniteFuture without client
// roots. CheckTlsMaterial must have accepted the material.
absl::Time CertificateEnd(const TlsMaterial& material);
absl::Time ClientRootsEnd(const TlsMaterial& material);

// Checks a client's certificate as a handshake at the time `now` would: it and what vouches for it must be valid then,
// up to one of the roots. Returns the time until which this stays so, or UNAUTHENTICATED (CERTIFICATE_REFUSED).
// certificate, chain: the client's own, and the intermediate ones that it has sent; all in PEM form.
absl::StatusOr<absl::Time> CheckClientCertificate(const std::string& client_ca, std::string_view certificate,
                                                  std::string_view chain, absl::Time now);

}  // namespace voxserve
