#include "server/identity/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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
  const absl::Time ends = TimeOf(X509_get0_notAfter(certificate));
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
  const bool is_any_valid = std::any_of(roots.begin(), roots.end(), [now](const Certificate& root) {
    return TimeOf(X509_get0_notAfter(root.get())) > now;
  });
  if (!is_any_valid) return Bad("tls_client_ca", paths.client_ca, "has expired certificates alone");
  return absl::OkStatus();
}

std::string DescribeCertificate(const TlsMaterial& material) {
  const absl::StatusOr<std::vector<Certificate>> chain = ParseCertificates("tls_certificate", "", material.certificate);
  if (!chain.ok()) return "";
  const Certificate& certificate = chain->front();
  return absl::StrCat(SubjectOf(certificate), ", valid until ", Written(TimeOf(X509_get0_notAfter(certificate.get()))));
}

}  // namespace voxserve
