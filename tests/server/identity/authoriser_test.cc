// Tests Authoriser and Caller: which token a call has, what the token allows, and a token file that changes while the
// Authoriser uses it.

#include "server/identity/authoriser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"

namespace voxserve::authoriser_test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kTruck[] = "truck-token-0123456789";
constexpr char kOperator[] = "operator-token-0123456789";
constexpr char kScraper[] = "scraper-token-0123456789";

class AuthoriserTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(testing::TempDir()) /
            absl::StrCat("tokens-", testing::UnitTest::GetInstance()->current_test_info()->name());
    Write(absl::StrCat("truck ", *HashToken(kTruck), " infer:mink* priority=1 share=3\n",  //
                       "operator ", *HashToken(kOperator), " admin\n",                     //
                       "scraper ", *HashToken(kScraper), " metrics\n"));
    absl::StatusOr<std::unique_ptr<Authoriser>> authoriser = Authoriser::Create(path_);
    ASSERT_TRUE(authoriser.ok()) << authoriser.status();
    authoriser_ = *std::move(authoriser);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void Write(const std::string& text) const { std::ofstream(path_) << text; }

  std::string NameOf(std::optional<std::string_view> header) const {
    const auto token = authoriser_->Identify(header);
    return token.ok() ? (*token)->name : ReasonOf(token.status());
  }
  Caller CallerOf(const std::string& token) const {
    return {.client = "", .token = *authoriser_->Identify("Bearer " + token)};
  }
  std::string Admission(Access access, const std::string& token) const {
    const auto admitted = authoriser_->Admit(access, "Bearer " + token);
    if (admitted.ok()) return "OK";
    EXPECT_EQ(admitted.status().code(), absl::StatusCode::kPermissionDenied);
    return ReasonOf(admitted.status());
  }

  std::string path_;
  std::unique_ptr<Authoriser> authoriser_;
};

// A call that was begun with the truck's token, and what its token is now worth after the file has changed.
class LookAgainTest : public AuthoriserTest {
 protected:
  void SetUp() override {
    AuthoriserTest::SetUp();
    caller_ = {.client = "token:truck",
               .token = *authoriser_->Admit(Access::kInfer, absl::StrCat("Bearer ", kTruck)),
               .access = Access::kInfer};
  }
  // Returns the reason for which the call must end, or "" if it may go on.
  std::string After(const std::string& rights, const std::string& name = "truck") {
    Write(absl::StrCat(name, " ", *HashToken(rights.empty() ? kOperator : kTruck), " ",
                       rights.empty() ? "infer:*" : rights, "\n"));
    authoriser_->Refresh();
    authoriser_->Refresh();
    const absl::StatusOr<Caller> now = authoriser_->LookAgain(caller_);
    const absl::Status status = now.ok() ? now->CheckMayDoAll(caller_) : now.status();
    EXPECT_EQ(absl::IsUnauthenticated(status), ReasonOf(status) == "UNKNOWN_TOKEN") << status;
    EXPECT_TRUE(status.ok() || absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) << status;
    return ReasonOf(status);
  }

  Caller caller_;
};

TEST_F(LookAgainTest, AFileThatDoesNotChangeChangesNothing) {
  authoriser_->Refresh();
  authoriser_->Refresh();
  EXPECT_EQ(authoriser_->LookAgain(caller_)->token, caller_.token);
  EXPECT_EQ(authoriser_->LookAgain({.client = "1.2.3.4", .token = nullptr})->token, nullptr);
}

TEST_F(LookAgainTest, WhoMayDoMoreOrAsMuchGoesOn) {
  EXPECT_EQ(After("infer:mink* priority=1 share=3"), "");
  EXPECT_EQ(After("infer:*,infer:mink*,admin priority=0 share=4"), "");
}

TEST_F(LookAgainTest, WhoMayDoLessDoesNot) {
  EXPECT_EQ(After(""), "UNKNOWN_TOKEN");
  EXPECT_EQ(After("infer:mink* priority=1 share=3", "lorry"), "UNKNOWN_TOKEN") << "limits count by name";
  EXPECT_EQ(After("infer:minkunet priority=1 share=3"), "SCOPE_TOO_SMALL");
  EXPECT_EQ(After("admin,metrics priority=1 share=3"), "SCOPE_TOO_SMALL");
  EXPECT_EQ(After("infer:mink* priority=2 share=3"), "PRIORITY_TOO_HIGH");
  EXPECT_EQ(After("infer:mink* priority=1 share=2.9"), "SHARE_REDUCED");
  EXPECT_EQ(After("infer:mink* priority=1 share=3"), "") << "as before";
}

TEST_F(LookAgainTest, AnOperatorMustStayOne) {
  caller_ = {.client = "token:operator",
             .token = *authoriser_->Admit(Access::kAdmin, absl::StrCat("Bearer ", kOperator)),
             .access = Access::kAdmin};
  Write(absl::StrCat("operator ", *HashToken(kOperator), " infer:*\n"));
  authoriser_->Refresh();
  authoriser_->Refresh();
  EXPECT_EQ(ReasonOf(authoriser_->LookAgain(caller_).status()), "SCOPE_TOO_SMALL");
  caller_.access = Access::kOpen;
  EXPECT_EQ(ReasonOf(authoriser_->LookAgain(caller_)->CheckMayDoAll(caller_)), "SCOPE_TOO_SMALL") << "sees all models";
}

TEST_F(AuthoriserTest, KnowsATokenByItsWholeText) {
  EXPECT_EQ(NameOf(absl::StrCat("Bearer ", kTruck)), "truck");
  EXPECT_EQ(NameOf(absl::StrCat("bEARER ", kOperator)), "operator");
  EXPECT_EQ(NameOf(absl::StrCat("Bearer ", kTruck, " ")), "UNKNOWN_TOKEN");
  EXPECT_EQ(NameOf(absl::StrCat("Bearer  ", kTruck)), "UNKNOWN_TOKEN");
  EXPECT_EQ(NameOf(std::string_view("Bearer truck-token-012345678")), "UNKNOWN_TOKEN");
  EXPECT_EQ(NameOf(std::string_view("Bearer ")), "UNKNOWN_TOKEN");
  EXPECT_EQ(NameOf(std::nullopt), "MISSING_TOKEN");
  EXPECT_EQ(NameOf(std::string_view("")), "MISSING_TOKEN");
  EXPECT_EQ(NameOf(std::string_view("Basic dHJ1Y2s6eA==")), "MISSING_TOKEN");
  EXPECT_EQ(NameOf(kTruck), "MISSING_TOKEN");
  EXPECT_EQ(NameOf(std::string(9000, 'B')), "MISSING_TOKEN");
}

TEST_F(AuthoriserTest, TheDigestOfATokenIsNoToken) {
  EXPECT_EQ(NameOf(absl::StrCat("Bearer ", *HashToken(kTruck))), "UNKNOWN_TOKEN");
}

TEST_F(AuthoriserTest, ScopesSayWhatATokenMayDo) {
  struct Row {
    Access access;
    std::string truck, rights, scraper;
  };
  const std::string no = "SCOPE_TOO_SMALL";
  for (const Row& row :
       {Row{Access::kAny, "OK", "OK", "OK"}, Row{Access::kInfer, "OK", no, no}, Row{Access::kModels, "OK", "OK", no},
        Row{Access::kAdmin, no, "OK", no}, Row{Access::kMetrics, no, no, "OK"}}) {
    EXPECT_EQ(Admission(row.access, kTruck), row.truck) << static_cast<int>(row.access);
    EXPECT_EQ(Admission(row.access, kOperator), row.rights) << static_cast<int>(row.access);
    EXPECT_EQ(Admission(row.access, kScraper), row.scraper) << static_cast<int>(row.access);
  }
  // A call that needs no token may have one. If the token is valid, Admit returns it.
  EXPECT_EQ(authoriser_->Admit(Access::kOpen, std::nullopt).value(), nullptr);
  EXPECT_EQ(authoriser_->Admit(Access::kOpen, "Bearer nonsense").value(), nullptr);
  EXPECT_EQ(authoriser_->Admit(Access::kOpen, absl::StrCat("Bearer ", kTruck)).value()->name, "truck");
  EXPECT_EQ(authoriser_->Admit(Access::kAny, std::nullopt).status().code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(AuthoriserTest, ModelsAreThoseOfTheScope) {
  const Caller truck = CallerOf(kTruck);
  EXPECT_TRUE(truck.CheckModel("minkunet").ok());
  EXPECT_TRUE(truck.SeesModel("minkunet"));
  EXPECT_EQ(truck.CheckModel("centerpoint").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ReasonOf(truck.CheckModel("centerpoint")), "SCOPE_TOO_SMALL");
  EXPECT_FALSE(truck.SeesModel("centerpoint"));
  EXPECT_TRUE(CallerOf(kOperator).SeesModel("centerpoint"));
  EXPECT_FALSE(CallerOf(kOperator).CheckModel("centerpoint").ok());
  EXPECT_TRUE(Caller().CheckModel("anything").ok());
  EXPECT_TRUE(Caller().SeesModel("anything"));
}

TEST_F(AuthoriserTest, NoModelIsShownToWhoShowsNoToken) {
  const Caller anonymous = {.client = "", .token = nullptr, .is_anonymous = true};
  EXPECT_FALSE(anonymous.SeesModel("minkunet"));
  EXPECT_EQ(anonymous.CheckModel("minkunet").code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(ReasonOf(anonymous.CheckModel("minkunet")), "MISSING_TOKEN");
}

TEST_F(AuthoriserTest, OtherModelsNamesStandInNoError) {
  const absl::Status all =
      WithReason(absl::NotFoundError("no model minkx; there are centerpoint, minkunet"), error_reason::kModelNotFound);
  const absl::Status narrowed = CallerOf(kTruck).Narrowed(all);
  EXPECT_EQ(narrowed.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReasonOf(narrowed), "MODEL_NOT_FOUND");
  EXPECT_THAT(narrowed.message(), Not(HasSubstr("centerpoint")));
  EXPECT_EQ(CallerOf(kOperator).Narrowed(all), all);
  EXPECT_EQ(Caller().Narrowed(all), all);
  const absl::Status other = absl::InternalError("centerpoint");
  EXPECT_EQ(CallerOf(kTruck).Narrowed(other), other);
}

TEST_F(AuthoriserTest, ThePriorityIsBoundedAsFarAsAModelHasLevels) {
  const Caller truck = CallerOf(kTruck);
  EXPECT_TRUE(truck.CheckPriority(1, 3).ok());
  EXPECT_TRUE(truck.CheckPriority(2, 3).ok());
  const absl::Status refused = truck.CheckPriority(0, 3);
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ReasonOf(refused), "PRIORITY_TOO_HIGH");
  EXPECT_THAT(refused.message(), HasSubstr("priority is 0; the token \"truck\" may ask for 1 or less urgent ones"));
  EXPECT_TRUE(truck.CheckPriority(0, 1).ok()) << "the model has no other";
  EXPECT_TRUE(Caller().CheckPriority(0, 3).ok());
  EXPECT_EQ(truck.share(), 3);
  EXPECT_EQ(Caller().share(), 1);
}

TEST_F(AuthoriserTest, AChangedFileCountsAndABadOneDoesNot) {
  const std::string bearer = absl::StrCat("Bearer ", kTruck);
  Write(absl::StrCat("lorry ", *HashToken(kTruck), " infer:*\n"));
  EXPECT_EQ(NameOf(bearer), "truck");
  authoriser_->Refresh();
  authoriser_->Refresh();
  EXPECT_EQ(NameOf(bearer), "lorry");
  EXPECT_EQ(NameOf(absl::StrCat("Bearer ", kOperator)), "UNKNOWN_TOKEN");
  testing::internal::CaptureStderr();
  Write("lorry abc admin\n");
  authoriser_->Refresh();
  authoriser_->Refresh();
  authoriser_->Refresh();
  std::filesystem::remove(path_);
  authoriser_->Refresh();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(NameOf(bearer), "lorry");
  EXPECT_THAT(log, HasSubstr("the tokens before stay"));
  EXPECT_THAT(log, HasSubstr("line 1: the second column"));
  EXPECT_THAT(log, HasSubstr("No such file"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << "each problem once: " << log;
}

TEST_F(AuthoriserTest, AFileThatIsBeingWrittenGivesNobodyMore) {
  const std::string whole = absl::StrCat("truck ", *HashToken(kTruck), " infer:mink*-public priority=1\n");
  Write(whole.substr(0, whole.find("-public")));
  authoriser_->Refresh();
  Write(whole);
  authoriser_->Refresh();
  EXPECT_EQ(CallerOf(kTruck).share(), 3) << "the text before stays until two looks find the same";
  authoriser_->Refresh();
  EXPECT_FALSE(CallerOf(kTruck).SeesModel("minkunet"));
  EXPECT_TRUE(CallerOf(kTruck).SeesModel("minkunet-public"));
}

TEST(AuthoriserFileTest, AFileThatCannotBeReadIsRefused) {
  const absl::Status missing = Authoriser::Create("/no/such/file").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(missing.message(), "--auth_tokens=/no/such/file cannot be read: No such file or directory");
  EXPECT_THAT(Authoriser::Create("/tmp").status().message(), HasSubstr("no regular file"));
  EXPECT_THAT(Authoriser::Create("/dev/zero").status().message(), HasSubstr("no regular file"));
}

}  // namespace
}  // namespace voxserve::authoriser_test
