#include "server/identity/client_certificates.h"

#include <grpc/grpc_security_constants.h>

#include <vector>

#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "server/identity/tls_files.h"

namespace voxserve {
namespace {

std::string_view PropertyOf(const grpc::AuthContext& connection, const char* name) {
  const std::vector<grpc::string_ref> values = connection.FindPropertyValues(name);
  if (values.empty()) return "";
  return {values.front().data(), values.front().size()};
}

}  // namespace

absl::Status ClientCertificates::Check(const grpc::AuthContext& connection) const {
  return Check(PropertyOf(connection, GRPC_X509_PEM_CERT_PROPERTY_NAME),
               PropertyOf(connection, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME));
}

absl::Status ClientCertificates::Check(std::string_view certificate, std::string_view chain) const {
  const uint64_t version = certificates_.version();  // before material(), which may be newer then
  const absl::Time now = certificates_.now();
  {
    absl::MutexLock lock(&mutex_);
    const auto found = known_.find(absl::string_view(certificate.data(), certificate.size()));
    if (found != known_.end() && found->second.version == version && now < found->second.until) {
      return absl::OkStatus();
    }
  }
  ASSIGN_OR_RETURN(const absl::Time until,
                   CheckClientCertificate(certificates_.material()->client_ca, certificate, chain, now));
  absl::MutexLock lock(&mutex_);
  if (known_.size() >= kMaxKnown) known_.clear();
  known_.insert_or_assign(std::string(certificate), Known{.version = version, .until = until});
  return absl::OkStatus();
}

}  // namespace voxserve
