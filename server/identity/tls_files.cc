#include "server/identity/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "server/identity/small_file.h"

namespace voxserve {
namespace {

template <typename T, void (*kFree)(T*)>
struct Freed {
  void operator()(T* object) const { kFree(object); }
};
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;
using Store = std::unique_ptr<X509_STORE, Freed<X509_STORE, X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freed<X509_STORE_CTX, X509_STORE_CTX_free>>;
// A stack that does not own its certificates.
using CertificateStack = std::unique_ptr<STACK_OF(X509), decltype([](STACK_OF(X509) * stack) { sk_X509_free(stack); })>;

absl::Status Bad(const std::string& flag, const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("--", flag, "=", path, " ", why));
}

Bio Reader(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// Returns the text of the last error of OpenSSL on this thread, and clears all of them.
std::string LastError() {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  std::string text = reason == nullptr ? "unknown error" : reason;
  ERR_clear_error();
  return text;
}

absl::StatusOr<std::vector<Certificate>> ParseCertificates(const std::string& flag, const std::string& path,
                                                           const std::string& text) {
  ERR_clear_error();
  const Bio bio = Reader(text);
  std::vector<Certificate> certificates;
  while (Certificate next = Certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr))) {
    certificates.push_back(std::move(next));
  }
  const bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (is_end && certificates.empty()) return Bad(flag, path, "has no certificate in PEM form");
  if (!is_end) {
    return Bad(
        flag, path,
        absl::StrCat("has a certificate that cannot be read, the ", certificates.size() + 1, ". one: ", LastError()));
  }
  ERR_clear_error();
  return certificates;
}

// The password callback for encrypted keys. It fails, since OpenSSL's default would ask the terminal.
int NoPassword(char* /*buffer*/, int /*size*/, int /*is_write*/, void* /*context*/) { return -1; }

absl::StatusOr<Key> ParseKey(const std::string& path, const std::string& text) {
  ERR_clear_error();
  Key key(PEM_read_bio_PrivateKey(Reader(text).get(), nullptr, NoPassword, nullptr));
  if (key != nullptr) return key;
  const std::string why = LastError();
  if (absl::StrContains(text, "ENCRYPTED")) {
    return Bad("tls_key", path, "is encrypted; the server cannot ask for a password: openssl pkey decrypts it");
  }
  return Bad("tls_key", path, absl::StrCat("has no private key in PEM form: ", why));
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::string Written(absl::Time time) { return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone()); }

absl::Time EndOf(const X509* certificate) { return TimeOf(X509_get0_notAfter(certificate)); }

absl::Status RefuseClient(const std::string& why) {
  return WithReason(absl::UnauthenticatedError(absl::StrCat("the client's certificate is refused by now: ", why)),
                    error_reason::kCertificateRefused);
}

std::string SubjectOf(const Certificate& certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), X509_get_subject_name(certificate.get()), 0, XN_FLAG_RFC2253);
  char* text = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &text);
  return std::string(text, static_cast<size_t>(size));
}

}  // namespace

absl::StatusOr<TlsMaterial> ReadTlsFiles(const TlsPaths& paths) {
  TlsMaterial material;
  ASSIGN_OR_RETURN(material.certificate, ReadSmallFile("tls_certificate", paths.certificate));
  ASSIGN_OR_RETURN(material.key, ReadSmallFile("tls_key", paths.key));
  if (!paths.client_ca.empty()) {
    ASSIGN_OR_RETURN(material.client_ca, ReadSmallFile("tls_client_ca", paths.client_ca));
  }
  return material;
}

absl::Status CheckTlsMaterial(const TlsPaths& paths, const TlsMaterial& material, absl::Time now) {
  ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                   ParseCertificates("tls_certificate", paths.certificate, material.certificate));
  ASSIGN_OR_RETURN(const Key key, ParseKey(paths.key, material.key));
  // Only the server's own certificate must be valid now. Other certificates of the chain may have expired, such as an
  // old root, which clients ignore.
  X509* const certificate = chain.front().get();
  const absl::Time begins = TimeOf(X509_get0_notBefore(certificate));
  const absl::Time ends = EndOf(certificate);
  if (ends <= now) return Bad("tls_certificate", paths.certificate, absl::StrCat("expired on ", Written(ends)));
  if (begins > now) {
    return Bad("tls_certificate", paths.certificate, absl::StrCat("is not valid before ", Written(begins)));
  }
  const bool fits = X509_check_private_key(certificate, key.get()) == 1;
  ERR_clear_error();
  if (!fits) {
    return Bad("tls_key", paths.key,
               absl::StrCat("does not belong to the first certificate of --tls_certificate=", paths.certificate));
  }
  if (paths.client_ca.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::vector<Certificate> roots,
                   ParseCertificates("tls_client_ca", paths.client_ca, material.client_ca));
  const bool is_any_valid =
      std::any_of(roots.begin(), roots.end(), [now](const Certificate& root) { return EndOf(root.get()) > now; });
  if (!is_any_valid) return Bad("tls_client_ca", paths.client_ca, "has expired certificates alone");
  return absl::OkStatus();
}

std::string DescribeCertificate(const TlsMaterial& material) {
  const absl::StatusOr<std::vector<Certificate>> chain = ParseCertificates("tls_certificate", "", material.certificate);
  if (!chain.ok()) return "";
  const Certificate& certificate = chain->front();
  return absl::StrCat(SubjectOf(certificate), ", valid until ", Written(EndOf(certificate.get())));
}

absl::Time CertificateEnd(const TlsMaterial& material) {
  const absl::StatusOr<std::vector<Certificate>> chain = ParseCertificates("tls_certificate", "", material.certificate);
  return chain.ok() ? EndOf(chain->front().get()) : absl::InfinitePast();
}

absl::Time ClientRootsEnd(const TlsMaterial& material) {
  if (material.client_ca.empty()) return absl::InfiniteFuture();
  absl::Time end = absl::InfinitePast();
  const absl::StatusOr<std::vector<Certificate>> roots = ParseCertificates("tls_client_ca", "", material.client_ca);
  if (!roots.ok()) return end;
  for (const Certificate& root : *roots) end = std::max(end, EndOf(root.get()));
  return end;
}

absl::StatusOr<absl::Time> CheckClientCertificate(const std::string& client_ca, std::string_view certificate,
                                                  std::string_view chain, absl::Time now) {
  ASSIGN_OR_RETURN(const std::vector<Certificate> roots, ParseCertificates("tls_client_ca", "", client_ca));
  // The client's own is the first.
  const absl::StatusOr<std::vector<Certificate>> shown =
      ParseCertificates("", "", absl::StrCat(std::string(certificate), "\n", std::string(chain)));
  if (!shown.ok()) return RefuseClient("it cannot be read");
  const Store store(X509_STORE_new());
  for (const Certificate& root : roots) X509_STORE_add_cert(store.get(), root.get());
  const CertificateStack others(sk_X509_new_null());
  for (size_t i = 1; i < shown->size(); ++i) sk_X509_push(others.get(), (*shown)[i].get());
  const StoreContext context(X509_STORE_CTX_new());
  if (X509_STORE_CTX_init(context.get(), store.get(), shown->front().get(), others.get()) != 1) {
    return RefuseClient(LastError());
  }
  // The handshake has checked the rest, such as what the certificate is for. gRPC too takes intermediate certificates
  // among the roots.
  X509_STORE_CTX_set_flags(context.get(), X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
  const bool is_good = X509_verify_cert(context.get()) == 1;
  const int error = X509_STORE_CTX_get_error(context.get());
  const X509* const bad = X509_STORE_CTX_get_current_cert(context.get());
  ERR_clear_error();
  if (error == X509_V_ERR_CERT_HAS_EXPIRED && bad == shown->front().get()) {
    return RefuseClient(absl::StrCat("it expired on ", Written(EndOf(bad))));
  }
  if (!is_good) {
    return RefuseClient(absl::StrCat("--tls_client_ca does not vouch for it: ", X509_verify_cert_error_string(error)));
  }
  absl::Time end = absl::InfiniteFuture();
  const STACK_OF(X509)* const verified = X509_STORE_CTX_get0_chain(context.get());
  for (int i = 0; i < sk_X509_num(verified); ++i) end = std::min(end, EndOf(sk_X509_value(verified, i)));
  return end;
}

}  // namespace voxserve
