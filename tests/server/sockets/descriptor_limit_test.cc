#include "server/sockets/descriptor_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

namespace voxserve::descriptor_limit_test {
namespace {

TEST(DescriptorLimitTest, RaisesTheSoftLimitToTheHardOne) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_GE(before.rlim_max, 200);
  const rlimit lowered = {.rlim_cur = 200, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lowered), 0);
  EXPECT_EQ(DescriptorLimit(), 200);
  const int64_t raised = RaiseDescriptorLimit();
  EXPECT_EQ(DescriptorLimit(), raised);
  if (before.rlim_max != RLIM_INFINITY) {
    EXPECT_EQ(raised, static_cast<int64_t>(before.rlim_max));
  }
  EXPECT_EQ(RaiseDescriptorLimit(), raised);
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace voxserve::descriptor_limit_test
