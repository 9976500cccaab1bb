#include "tests/faults/fault_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"

namespace voxserve::fault_rules_test {
namespace {

using ::testing::HasSubstr;

TEST(FaultRulesTest, AnEmptyTextHasNoRules) {
  for (const char* text : {"", " ", ";", " ; "}) {
    const auto rules = ParseFaultRules(text);
    ASSERT_TRUE(rules.ok()) << rules.status();
    EXPECT_TRUE(rules->empty());
  }
}

TEST(FaultRulesTest, ASiteAloneFailsEveryTime) {
  const auto rules = ParseFaultRules("host_memory");
  ASSERT_TRUE(rules.ok()) << rules.status();
  ASSERT_EQ(rules->size(), 1u);
  EXPECT_EQ(rules->front().site, FaultSite::kHostMemory);
  EXPECT_EQ(rules->front().after, 0);
  EXPECT_EQ(rules->front().every, 1);
  EXPECT_GT(rules->front().times, int64_t{1} << 60);
}

TEST(FaultRulesTest, SettingsAndSeveralRulesAreRead) {
  const auto rules = ParseFaultRules(
      "reserve_scratch:after=5,times=1;slow_batch:ms=200,every=3; clock:seconds=-3600 ;heap:bytes=4096");
  ASSERT_TRUE(rules.ok()) << rules.status();
  ASSERT_EQ(rules->size(), 4u);
  EXPECT_EQ((*rules)[0].site, FaultSite::kReserveScratch);
  EXPECT_EQ((*rules)[0].after, 5);
  EXPECT_EQ((*rules)[0].times, 1);
  EXPECT_EQ((*rules)[1].amount, 200);
  EXPECT_EQ((*rules)[1].every, 3);
  EXPECT_EQ((*rules)[2].site, FaultSite::kClock);
  EXPECT_EQ((*rules)[2].amount, -3600);
  EXPECT_EQ((*rules)[3].amount, 4096);
}

TEST(FaultRulesTest, EverySiteHasItsName) {
  for (size_t i = 0; i < kFaultSiteNames.size(); ++i) {
    const auto rules = ParseFaultRules(kFaultSiteNames[i]);
    ASSERT_TRUE(rules.ok()) << rules.status();
    EXPECT_EQ(static_cast<size_t>(rules->front().site), i);
  }
}

TEST(FaultRulesTest, WrongRulesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"disk", "a site that does not exist"},
      {"Host_memory", "a site that does not exist"},
      {":every=2", "a site that does not exist"},
      {"host_memory:every", "without a whole number"},
      {"host_memory:every=", "without a whole number"},
      {"host_memory:every=1.5", "without a whole number"},
      {"host_memory:every=99999999999999999999", "without a whole number"},
      {"host_memory:every=0", "a setting that its site does not know"},
      {"host_memory:after=-1", "a number out of range"},
      {"host_memory:after=9999999999999", "a number out of range"},
      {"host_memory:ms=5", "a setting that its site does not know"},
      {"host_memory:=5", "a setting that its site does not know"},
      {"slow_batch:seconds=5", "a setting that its site does not know"},
      {"slow_batch:ms=-5", "a number out of range"},
      {"log;log:every=2", "a site that another one has"},
  };
  for (const auto& [text, why] : cases) {
    const auto rules = ParseFaultRules(text);
    EXPECT_EQ(rules.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(rules.status().message()), HasSubstr(why)) << text;
  }
}

}  // namespace
}  // namespace voxserve::fault_rules_test
