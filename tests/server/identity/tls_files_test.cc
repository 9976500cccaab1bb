// Tests ReadTlsFiles and CheckTlsMaterial on certificates and keys that the command openssl makes: which are accepted,
// and the errors of the others.

#include "server/identity/tls_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "server/identity/client_certificates.h"
#include "server/identity/tls_certificates.h"

namespace voxserve::tls_files_test {
namespace {

using testing::HasSubstr;

// The fixture's files exist until the last test of the suite has run.
class TlsFilesTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new std::string(std::filesystem::path(testing::TempDir()) / absl::StrCat("tls-", getpid()));
    std::filesystem::create_directories(*folder_);
    MakePair("good", "-days 30");
    MakePair("other", "-days 30");
  }
  static void TearDownTestSuite() {
    std::filesystem::remove_all(*folder_);
    delete folder_;
  }

  static std::string Path(const std::string& name) { return absl::StrCat(*folder_, "/", name); }
  static void Shell(const std::string& command) {
    ASSERT_EQ(std::system(absl::StrCat(command, " >/dev/null 2>&1").c_str()), 0) << command;
  }
  static void MakePair(const std::string& name, const std::string& days) {
    Shell(absl::StrCat("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=", name,
                       " -keyout ", Path(name + ".key"), " -out ", Path(name + ".pem"), " ", days));
  }
  static void Write(const std::string& name, const std::string& text) { std::ofstream(Path(name)) << text; }
  static std::string Read(const std::string& name) {
    std::ifstream file(Path(name));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static TlsPaths Paths(const std::string& certificate, const std::string& key, const std::string& ca = "") {
    return {.certificate = Path(certificate), .key = Path(key), .client_ca = ca.empty() ? "" : Path(ca)};
  }

  // Returns the error of reading and checking the files, or "" if they are good.
  static std::string ErrorOf(const TlsPaths& paths, absl::Time now = absl::Now()) {
    const absl::StatusOr<TlsMaterial> material = ReadTlsFiles(paths);
    const absl::Status status = material.ok() ? CheckTlsMaterial(paths, *material, now) : material.status();
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  }

  static inline std::string* folder_ = nullptr;
};

TEST_F(TlsFilesTest, TakesAPairAChainAndRoots) {
  EXPECT_EQ(ErrorOf(Paths("good.pem", "good.key")), "");
  EXPECT_EQ(ErrorOf(Paths("good.pem", "good.key", "other.pem")), "");
  Write("chain.pem", Read("good.pem") + "text between\n" + Read("other.pem"));
  EXPECT_EQ(ErrorOf(Paths("chain.pem", "good.key", "chain.pem")), "");
  EXPECT_THAT(DescribeCertificate(*ReadTlsFiles(Paths("good.pem", "good.key"))), HasSubstr("CN=good, valid until 2"));
}

TEST_F(TlsFilesTest, SaysWhichFileCannotBeRead) {
  EXPECT_EQ(ErrorOf(Paths("missing", "good.key")),
            absl::StrCat("--tls_certificate=", Path("missing"), " cannot be read: No such file or directory"));
  EXPECT_THAT(ErrorOf(Paths("good.pem", "missing")), HasSubstr("--tls_key="));
  EXPECT_THAT(ErrorOf(Paths("good.pem", "good.key", "missing")), HasSubstr("--tls_client_ca="));
  EXPECT_THAT(ErrorOf(Paths("", "good.key")), HasSubstr("no regular file"));
  Write("large.pem", std::string(2 << 20, 'x'));
  EXPECT_THAT(ErrorOf(Paths("large.pem", "good.key")), HasSubstr("more than 1 MiB"));
}

TEST_F(TlsFilesTest, SaysWhatIsWrongWithACertificate) {
  Write("text.pem", "no certificate");
  EXPECT_THAT(ErrorOf(Paths("text.pem", "good.key")), HasSubstr("text.pem has no certificate in PEM form"));
  EXPECT_THAT(ErrorOf(Paths("good.key", "good.key")), HasSubstr("has no certificate in PEM form"));
  Write("cut.pem", Read("good.pem") + Read("other.pem").substr(0, 200));
  EXPECT_THAT(ErrorOf(Paths("cut.pem", "good.key")), HasSubstr("the 2. one: "));
  EXPECT_THAT(ErrorOf(Paths("good.pem", "good.key", "text.pem")), HasSubstr("--tls_client_ca="));
}

TEST_F(TlsFilesTest, SaysWhenACertificateIsValid) {
  const TlsPaths paths = Paths("good.pem", "good.key", "other.pem");
  EXPECT_THAT(ErrorOf(paths, absl::Now() + absl::Hours(24 * 31)), HasSubstr("good.pem expired on 2"));
  EXPECT_THAT(ErrorOf(paths, absl::Now() - absl::Hours(1)), HasSubstr("good.pem is not valid before 2"));
  MakePair("long", "-days 300");
  EXPECT_THAT(ErrorOf(Paths("long.pem", "long.key", "other.pem"), absl::Now() + absl::Hours(24 * 31)),
              HasSubstr("other.pem has expired certificates alone"));
}

TEST_F(TlsFilesTest, SaysWhatIsWrongWithAKey) {
  EXPECT_THAT(ErrorOf(Paths("good.pem", "other.key")), HasSubstr("does not belong to the first certificate"));
  EXPECT_THAT(ErrorOf(Paths("good.pem", "good.pem")), HasSubstr("has no private key in PEM form"));
  Shell(absl::StrCat("openssl pkcs8 -topk8 -passout pass:secret -in ", Path("good.key"), " -out ", Path("locked.key")));
  EXPECT_THAT(ErrorOf(Paths("good.pem", "locked.key")), HasSubstr("is encrypted"));
}

TEST_F(TlsFilesTest, AChangeCountsWhenItIsGood) {
  Write("live.pem", Read("good.pem"));
  Write("live.key", Read("good.key"));
  auto certificates = TlsCertificates::Create(Paths("live.pem", "live.key"));
  ASSERT_TRUE(certificates.ok()) << certificates.status();
  (*certificates)->Refresh();
  EXPECT_EQ((*certificates)->version(), 1);
  testing::internal::CaptureStderr();
  Write("live.pem", Read("other.pem"));
  (*certificates)->Refresh();
  (*certificates)->Refresh();
  EXPECT_EQ((*certificates)->version(), 1) << "the key is not there yet";
  EXPECT_EQ((*certificates)->material()->certificate, Read("good.pem"));
  Write("live.key", Read("other.key"));
  (*certificates)->Refresh();
  EXPECT_EQ((*certificates)->version(), 2);
  EXPECT_EQ((*certificates)->material()->certificate, Read("other.pem"));
  std::filesystem::remove(Path("live.key"));
  (*certificates)->Refresh();
  EXPECT_EQ((*certificates)->version(), 2);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("the certificate before stays"));
  EXPECT_THAT(log, HasSubstr("does not belong"));
  EXPECT_THAT(log, HasSubstr("loaded anew certificate=\"CN=other, valid until"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3) << "each problem once: " << log;
}

constexpr absl::Duration kDay = absl::Hours(24);

TEST_F(TlsFilesTest, AnEndThatIsNearIsToldEachDay) {
  MakePair("days100", "-days 100");
  absl::Time now = absl::Now();
  Write("end.pem", Read("good.pem"));
  Write("end.key", Read("good.key"));
  const auto certificates =
      *TlsCertificates::Create(Paths("end.pem", "end.key", "days100.pem"), [&now] { return now; });
  const absl::Time end = certificates->certificate_end();
  EXPECT_LT(absl::AbsDuration(end - (now + 30 * kDay)), absl::Minutes(1));
  EXPECT_LT(absl::AbsDuration(certificates->client_roots_end() - (now + 100 * kDay)), absl::Minutes(1));
  // Returns what a look at this time logs.
  const auto told = [&](absl::Time time) {
    now = time;
    testing::internal::CaptureStderr();
    certificates->Refresh();
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(told(end - 14 * kDay - absl::Seconds(1)), "");
  const std::string first = told(end - 14 * kDay);
  EXPECT_THAT(first, HasSubstr("WARNING the TLS certificate ends soon: replace its file"));
  EXPECT_THAT(first, HasSubstr(absl::StrCat("file=", Path("end.pem"), " end=20")));
  EXPECT_THAT(first, HasSubstr(" days=14\n"));
  EXPECT_EQ(told(end - 14 * kDay + absl::Seconds(1)), "");
  EXPECT_EQ(told(end - 13 * kDay - absl::Seconds(1)), "");
  EXPECT_THAT(told(end - 13 * kDay), HasSubstr(" days=13\n"));
  EXPECT_THAT(told(end - absl::Hours(1)), HasSubstr("ends soon"));
  EXPECT_EQ(told(end - absl::Seconds(1)), "");
  EXPECT_THAT(told(end), HasSubstr("ERROR the TLS certificate has ended: clients refuse this server"));
  EXPECT_EQ(told(end + absl::Seconds(1)), "");
  EXPECT_THAT(told(end + kDay), HasSubstr("has ended"));
  // A clock that is set back tells again. Roots have an end too.
  EXPECT_THAT(told(end - absl::Hours(2)), HasSubstr("ends soon"));
  const std::string roots = told(certificates->client_roots_end() - kDay);
  EXPECT_THAT(roots, HasSubstr("WARNING the last root of clients' certificates ends soon"));
  EXPECT_THAT(told(certificates->client_roots_end() + absl::Seconds(1)), HasSubstr("ERROR the last root of clients' "));
}

TEST_F(TlsFilesTest, ANewCertificateHasItsOwnEnd) {
  MakePair("short", "-days 10");
  absl::Time now = absl::Now();
  Write("swap.pem", Read("short.pem"));
  Write("swap.key", Read("short.key"));
  const auto certificates = *TlsCertificates::Create(Paths("swap.pem", "swap.key"), [&now] { return now; });
  EXPECT_EQ(certificates->client_roots_end(), absl::InfiniteFuture());
  const absl::Time end = certificates->certificate_end();
  testing::internal::CaptureStderr();
  certificates->Refresh();
  Write("swap.pem", Read("good.pem"));
  Write("swap.key", Read("good.key"));
  certificates->Refresh();
  certificates->Refresh();
  EXPECT_GT(certificates->certificate_end(), end + 19 * kDay);
  now = end + kDay;
  certificates->Refresh();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("ends soon"));
  EXPECT_THAT(log, HasSubstr("loaded anew"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;
}

class ClientCertificatesTest : public TlsFilesTest {
 protected:
  // Makes NAME.pem and NAME.key, which the key of `issuer` has signed. days: from now.
  static void Issue(const std::string& name, const std::string& issuer, int days, bool is_authority = false) {
    Write("extensions", is_authority ? "basicConstraints=critical,CA:TRUE\n" : "extendedKeyUsage=clientAuth\n");
    Shell(absl::StrCat("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=", name, " -keyout ",
                       Path(name + ".key"), " -out ", Path(name + ".csr")));
    Shell(absl::StrCat("openssl x509 -req -in ", Path(name + ".csr"), " -CA ", Path(issuer + ".pem"), " -CAkey ",
                       Path(issuer + ".key"), " -CAcreateserial -out ", Path(name + ".pem"), " -days ", days,
                       " -extfile ", Path("extensions")));
  }
  static std::string ErrorOfClient(const std::string& roots, const std::string& certificate, const std::string& chain,
                                   absl::Duration later) {
    const auto until = CheckClientCertificate(roots, certificate, chain, absl::Now() + later);
    if (until.ok()) return "";
    EXPECT_TRUE(absl::IsUnauthenticated(until.status()));
    EXPECT_EQ(ReasonOf(until.status()), "CERTIFICATE_REFUSED");
    return std::string(until.status().message());
  }
};

TEST_F(ClientCertificatesTest, ACertificateIsGoodAsLongAsAllThatVouchForItAre) {
  Issue("middle", "good", 20, true);
  Issue("direct", "good", 10);
  Issue("deep", "middle", 25);
  const std::string root = Read("good.pem");
  const std::string direct = Read("direct.pem");
  const std::string deep = Read("deep.pem");
  const std::string middle = Read("middle.pem");
  EXPECT_EQ(ErrorOfClient(root, direct, "", kDay), "");
  EXPECT_THAT(ErrorOfClient(root, direct, "", 11 * kDay), HasSubstr("is refused by now: it expired on 20"));
  EXPECT_EQ(ErrorOfClient(root, deep, middle, 19 * kDay), "");
  EXPECT_THAT(ErrorOfClient(root, deep, middle, 21 * kDay),
              HasSubstr("does not vouch for it: certificate has expired"));
  EXPECT_THAT(ErrorOfClient(root, deep, "", kDay), HasSubstr("--tls_client_ca does not vouch for it"));
  EXPECT_EQ(ErrorOfClient(middle, deep, "", kDay), "") << "an intermediate certificate may be among the roots";
  EXPECT_EQ(ErrorOfClient(Read("other.pem") + root, direct, "", kDay), "");
  EXPECT_THAT(ErrorOfClient(Read("other.pem"), direct, "", kDay), HasSubstr("does not vouch for it"));
  EXPECT_THAT(ErrorOfClient(root, "text", "", kDay), HasSubstr("it cannot be read"));
  EXPECT_THAT(ErrorOfClient(root, "", "", kDay), HasSubstr("it cannot be read"));
  const auto until = CheckClientCertificate(root, deep, middle, absl::Now());
  ASSERT_TRUE(until.ok());
  EXPECT_LT(absl::AbsDuration(*until - (absl::Now() + 20 * kDay)), absl::Minutes(1)) << "the end of the first to end";
}

TEST_F(ClientCertificatesTest, WhatWasGoodIsLookedAtAgainWhenTimeOrRootsChange) {
  Issue("truck", "good", 10);
  absl::Time now = absl::Now();
  Write("roots.pem", Read("good.pem") + Read("other.pem"));
  const auto certificates =
      *TlsCertificates::Create(Paths("good.pem", "good.key", "roots.pem"), [&now] { return now; });
  const ClientCertificates clients(certificates.get());
  const std::string truck = Read("truck.pem");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(clients.Check(truck, "").ok());
  now += 10 * kDay + absl::Minutes(1);
  EXPECT_EQ(ReasonOf(clients.Check(truck, "")), "CERTIFICATE_REFUSED");
  now -= kDay;
  EXPECT_TRUE(clients.Check(truck, "").ok()) << "a clock that was wrong for a while refuses nobody for good";
  Write("roots.pem", Read("other.pem"));
  certificates->Refresh();
  ASSERT_EQ(certificates->version(), 2);
  EXPECT_EQ(ReasonOf(clients.Check(truck, "")), "CERTIFICATE_REFUSED");
  Write("roots.pem", Read("good.pem"));
  certificates->Refresh();
  EXPECT_TRUE(clients.Check(truck, "").ok());
}

}  // namespace
}  // namespace voxserve::tls_files_test
