#include "server/calls/byte_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"

namespace voxserve::byte_limits_test {
namespace {

using testing::HasSubstr;

void ExpectRefused(const absl::Status& status, const std::string& reason, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), reason);
  EXPECT_EQ(RetryDelayOf(status), absl::Milliseconds(100));
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

ByteLimits::Options Limits(int64_t requests, int64_t frames, int64_t sweeps, int64_t answers) {
  ByteLimits::Options options;
  options.max_bytes = {requests, frames, sweeps, answers};
  return options;
}

TEST(ByteLimitsTest, BoundsEachKindButNotOneAlone) {
  ByteLimits limits(Limits(50, 200, 300, 100));
  auto answer = limits.Hold(ByteKind::kAnswer, "a", 1000);
  ASSERT_TRUE(answer.ok()) << "it could never be sent otherwise";
  ExpectRefused(limits.Hold(ByteKind::kAnswer, "b", 1).status(), "QUEUE_FULL", "100 (--grpc_memory_bytes)");
  const auto frame = limits.Hold(ByteKind::kFrame, "a", 200);
  EXPECT_TRUE(frame.ok()) << "each kind has its own bound";
  ExpectRefused(limits.Hold(ByteKind::kFrame, "b", 1).status(), "QUEUE_FULL", "200 (--max_queue_bytes)");
  const auto sweep = limits.Hold(ByteKind::kSweep, "a", 250);
  EXPECT_TRUE(sweep.ok());
  ExpectRefused(limits.Hold(ByteKind::kSweep, "b", 51).status(), "QUEUE_FULL", "limit of 300");
  const auto request = limits.Hold(ByteKind::kRequest, "a", 50);
  EXPECT_TRUE(request.ok());
  ExpectRefused(limits.Hold(ByteKind::kRequest, "b", 1).status(), "QUEUE_FULL", "limit of 50");
  answer->Release();
  EXPECT_TRUE(limits.Hold(ByteKind::kAnswer, "b", 1).ok());
  EXPECT_EQ(limits.held(ByteKind::kAnswer), 0) << "given back, as nobody keeps it";
  EXPECT_EQ(limits.held(ByteKind::kFrame), 200);
}

TEST(ByteLimitsTest, AClientHasItsShareOfAllKindsTogether) {
  ByteLimits::Options options;
  options.max_client_bytes = 100;
  ByteLimits limits(options);
  const auto request = limits.Hold(ByteKind::kRequest, "greedy", 60);
  const auto answer = limits.Hold(ByteKind::kAnswer, "greedy", 40);
  ASSERT_TRUE(request.ok() && answer.ok());
  ExpectRefused(limits.Hold(ByteKind::kSweep, "greedy", 1).status(), "CLIENT_LIMIT", "share of 100");
  EXPECT_TRUE(limits.Hold(ByteKind::kSweep, "modest", 100).ok());
}

TEST(ByteLimitsTest, AClientLeavesAsMuchAsItHasToOthers) {
  ByteLimits limits(Limits(0, 0, 0, 100));
  const auto first = limits.Hold(ByteKind::kAnswer, "greedy", 30);
  const auto second = limits.Hold(ByteKind::kAnswer, "greedy", 20);
  ASSERT_TRUE(first.ok() && second.ok());
  ExpectRefused(limits.Hold(ByteKind::kAnswer, "greedy", 1).status(), "CLIENT_LIMIT", "100 bytes of unread answers");
  const auto third = limits.Hold(ByteKind::kAnswer, "also greedy", 10);
  const auto fourth = limits.Hold(ByteKind::kAnswer, "also greedy", 15);
  ASSERT_TRUE(third.ok() && fourth.ok());
  ExpectRefused(limits.Hold(ByteKind::kAnswer, "also greedy", 1).status(), "CLIENT_LIMIT", "25 are this client's");
  const auto modest = limits.Hold(ByteKind::kAnswer, "modest", 25);
  ASSERT_TRUE(modest.ok());
  ExpectRefused(limits.Hold(ByteKind::kAnswer, "late", 1).status(), "QUEUE_FULL", "limit of 100");
  const auto same = limits.Hold(ByteKind::kAnswer, "greedy", 20, 20);
  EXPECT_TRUE(same.ok()) << "it takes no more than before";
}

// Holds 10 bytes for each of 200 addresses that `address` returns, as long as they are admitted. Returns what is held.
std::vector<HeldBytes> HeldByMany(ByteLimits& limits, const std::function<std::string(int)>& address) {
  std::vector<HeldBytes> all;
  for (int i = 0; i < 200; ++i) {
    auto held = limits.Hold(ByteKind::kSweep, address(i), 10);
    if (held.ok()) all.push_back(*std::move(held));
  }
  return all;
}

TEST(ByteLimitsTest, TheAddressesOfANetworkLeaveAPartToOthers) {
  struct Case {
    const char* name;
    std::function<std::string(int)> address;
    int64_t most;  // of 1024 bytes
  };
  const std::vector<Case> cases = {
      {"/24", [](int i) { return absl::StrCat("10.1.1.", i); }, 760},                     // 3/4, in tens
      {"/16", [](int i) { return absl::StrCat("10.1.", i, ".1"); }, 890},                 // 7/8
      {"/60", [](int i) { return absl::StrCat("2001:db8:1:10", i % 8, "::/64"); }, 760},  // eight /64
      {"/56", [](int i) { return absl::StrCat("2001:db8:1:1", 10 + i % 80, "::/64"); }, 890},
      {"/48", [](int i) { return absl::StrCat("2001:db8:1:", 1000 + 40 * i, "::/64"); }, 960},  // 15/16
      {"tokens", [](int i) { return absl::StrCat("truck-", i); }, 1020}};
  for (const Case& one : cases) {
    ByteLimits limits(Limits(0, 0, 1024, 0));
    const std::vector<HeldBytes> held = HeldByMany(limits, one.address);
    EXPECT_EQ(limits.held(ByteKind::kSweep), one.most) << one.name;
    EXPECT_EQ(limits.Hold(ByteKind::kSweep, "10.2.3.4", 10).ok(), one.most < 1000) << one.name;
  }
}

TEST(ByteLimitsTest, ANetworkThatIsRefusedIsNamedAndGetsItsPartBack) {
  ByteLimits limits(Limits(0, 0, 0, 100));
  auto first = limits.Hold(ByteKind::kAnswer, "10.0.0.1", 40);
  auto second = limits.Hold(ByteKind::kAnswer, "10.0.0.2", 30);
  ASSERT_TRUE(first.ok() && second.ok());
  ExpectRefused(limits.Hold(ByteKind::kAnswer, "10.0.0.3", 10).status(), "CLIENT_LIMIT",
                "70 are those of the network 10.0.0.0/24");
  EXPECT_TRUE(limits.Hold(ByteKind::kAnswer, "10.0.1.1", 10).ok());
  first->Release();
  EXPECT_TRUE(limits.Hold(ByteKind::kAnswer, "10.0.0.3", 10).ok());
}

TEST(ByteLimitsTest, WhatGivesWayDoesNotCount) {
  ByteLimits::Options options = Limits(0, 400, 0, 0);
  options.max_client_bytes = 200;
  ByteLimits limits(options);
  auto first = limits.Hold(ByteKind::kFrame, "a", 100);
  const auto second = limits.Hold(ByteKind::kFrame, "a", 100);
  ASSERT_TRUE(first.ok() && second.ok());
  ExpectRefused(limits.Hold(ByteKind::kFrame, "a", 101, 100).status(), "CLIENT_LIMIT", "share of 200");
  const auto third = limits.Hold(ByteKind::kFrame, "a", 100, 100);
  EXPECT_TRUE(third.ok());
  first->Release();
  ExpectRefused(limits.Hold(ByteKind::kFrame, "a", 1).status(), "CLIENT_LIMIT", "share of 200");
  const auto other = limits.Hold(ByteKind::kFrame, "b", 200);
  ASSERT_TRUE(other.ok());
  ExpectRefused(limits.Hold(ByteKind::kFrame, "b", 201, 200).status(), "QUEUE_FULL", "400");
  EXPECT_TRUE(limits.Hold(ByteKind::kFrame, "b", 200, 200).ok());
}

TEST(ByteLimitsTest, TheProcesssBudgetCountsToo) {
  MemoryBudget budget(1000);
  ByteLimits::Options options;
  options.budget = &budget;
  ByteLimits limits(options);
  auto held = limits.Hold(ByteKind::kRequest, "a", 400);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(budget.held(MemoryBudget::Use::kRequests), 400);
  ExpectRefused(limits.Hold(ByteKind::kAnswer, "b", 200).status(), "QUEUE_FULL", "--memory_limit");
  EXPECT_EQ(ReasonOf(limits.Hold(ByteKind::kAnswer, "b", 501).status()), "OUT_OF_MEMORY") << "it could never fit";
  EXPECT_EQ(limits.held(ByteKind::kAnswer), 0);
  held->Release();
  EXPECT_EQ(budget.held(), 0);
}

TEST(ByteLimitsTest, ARefusalLeavesTheBudgetAsItWas) {
  MemoryBudget budget(1000);
  ByteLimits::Options options = Limits(10, 10, 10, 10);
  options.budget = &budget;
  ByteLimits limits(options);
  const auto held = limits.Hold(ByteKind::kRequest, "a", 10);
  ASSERT_FALSE(limits.Hold(ByteKind::kRequest, "b", 1).ok());
  EXPECT_EQ(budget.held(), 10);
}

TEST(ByteLimitsTest, WhatIsHeldMovesAndMayOutliveTheLimits) {
  auto limits = std::make_unique<ByteLimits>(ByteLimits::Options());
  auto held = limits->Hold(ByteKind::kSweep, "a", 100);
  ASSERT_TRUE(held.ok());
  HeldBytes moved = *std::move(held);
  HeldBytes again;
  again = std::move(moved);
  EXPECT_EQ(again.bytes(), 100);
  EXPECT_EQ(moved.bytes(), 0);
  EXPECT_EQ(limits->held(ByteKind::kSweep), 100);
  limits.reset();
  again.Release();
  again.Release();
}

}  // namespace
}  // namespace voxserve::byte_limits_test
