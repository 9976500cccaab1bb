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

}  // namespace
}  // namespace voxserve::tls_files_test
