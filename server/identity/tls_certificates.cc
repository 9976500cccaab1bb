#include "server/identity/tls_certificates.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "server/grpc/grpc_version.h"

namespace voxserve {
namespace {

// Credentials that give gRPC the newest certificate at every handshake. gRPC's C++ interface has no such credentials,
// so this class uses those of the C interface.
class ReloadingCredentials final : public OwnedServerCredentials {
 public:
  explicit ReloadingCredentials(const TlsCertificates* certificates)
      : OwnedServerCredentials(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                certificates->asks_clients() ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                             : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
                &ReloadingCredentials::Fetch, this))),
        certificates_(certificates) {}

 private:
  // gRPC calls this function at every handshake, while it holds a lock of the port.
  static grpc_ssl_certificate_config_reload_status Fetch(void* self,
                                                         grpc_ssl_server_certificate_config** certificate_config) {
    return static_cast<ReloadingCredentials*>(self)->FetchNew(certificate_config);
  }

  grpc_ssl_certificate_config_reload_status FetchNew(grpc_ssl_server_certificate_config** certificate_config) {
    const uint64_t version = certificates_->version();
    if (given_version_.exchange(version) == version) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const std::shared_ptr<const TlsMaterial> material = certificates_->material();
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = material->key.c_str(),
                                             .cert_chain = material->certificate.c_str()};
    // gRPC 1.51.1 asserts that a new configuration has roots. If no client is asked for a certificate, nothing reads
    // the roots, so the server's own certificate fills the field.
    const std::string& roots = material->client_ca.empty() ? material->certificate : material->client_ca;
    *certificate_config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const TlsCertificates* const certificates_;
  std::atomic<uint64_t> given_version_{0};
};

}  // namespace

absl::StatusOr<std::unique_ptr<TlsCertificates>> TlsCertificates::Create(TlsPaths paths,
                                                                         std::function<absl::Time()> now) {
  ASSIGN_OR_RETURN(TlsMaterial material, ReadTlsFiles(paths));
  RETURN_IF_ERROR(CheckTlsMaterial(paths, material, now()));
  return std::unique_ptr<TlsCertificates>(new TlsCertificates(std::move(paths), std::move(material), std::move(now)));
}

TlsCertificates::TlsCertificates(TlsPaths paths, TlsMaterial material, std::function<absl::Time()> now)
    : paths_(std::move(paths)),
      now_(std::move(now)),
      certificate_({.end = CertificateEnd(material)}),
      client_roots_({.end = ClientRootsEnd(material)}),
      material_(std::make_shared<const TlsMaterial>(std::move(material))) {}

std::shared_ptr<const TlsMaterial> TlsCertificates::material() const {
  absl::MutexLock lock(&mutex_);
  return material_;
}

void TlsCertificates::TellEnd(const std::string& what, const std::string& effect, const std::string& path,
                              Ending* ending) const {
  constexpr absl::Duration kPause = absl::Hours(24);
  const absl::Time now = now_();
  if (now < ending->end - kWarnBefore) return;
  const bool is_over = now >= ending->end;
  // A clock that was set back must not silence the lines.
  const bool is_due = now >= ending->told + kPause || now < ending->told;
  if (!is_due && is_over == ending->told_as_over) return;
  ending->told = now;
  ending->told_as_over = is_over;
  Log(is_over ? LogLevel::kError : LogLevel::kWarning,
      is_over ? absl::StrCat(what, " has ended: ", effect)
              : absl::StrCat(what, " ends soon: replace its file, which is read again by itself"),
      {{"file", path},
       {"end", absl::FormatTime(absl::RFC3339_sec, ending->end, absl::UTCTimeZone())},
       {"days", absl::ToInt64Hours(ending->end - now) / 24}});
}

void TlsCertificates::Refresh() {
  TellEnd("the TLS certificate", "clients refuse this server", paths_.certificate, &certificate_);
  TellEnd("the last root of clients' certificates", "no client can connect", paths_.client_ca, &client_roots_);
  absl::StatusOr<TlsMaterial> material = ReadTlsFiles(paths_);
  absl::Status status = material.status();
  if (status.ok()) {
    if (*material == *this->material()) {
      last_problem_.clear();
      return;
    }
    status = CheckTlsMaterial(paths_, *material, now_());
  }
  if (!status.ok()) {
    const std::string problem(status.message());
    if (problem == last_problem_) return;
    last_problem_ = problem;
    Log(LogLevel::kWarning, "the TLS files have changed and cannot be used: the certificate before stays",
        {{"error", problem}});
    return;
  }
  last_problem_.clear();
  certificate_ = {.end = CertificateEnd(*material)};
  client_roots_ = {.end = ClientRootsEnd(*material)};
  Log(LogLevel::kInfo, "TLS certificate loaded anew", {{"certificate", DescribeCertificate(*material)}});
  {
    absl::MutexLock lock(&mutex_);
    material_ = std::make_shared<const TlsMaterial>(*std::move(material));
  }
  version_.fetch_add(1, std::memory_order_release);
}

std::shared_ptr<grpc::ServerCredentials> TlsCertificates::NewGrpcCredentials() const {
  return std::make_shared<ReloadingCredentials>(this);
}

}  // namespace voxserve
