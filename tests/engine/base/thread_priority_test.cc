#include "engine/base/thread_priority.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace voxserve::thread_priority_test {
namespace {

int NiceOfThisThread() { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); }

TEST(ThreadPriorityTest, TheWorkHasALowerPriorityThanItsCaller) {
  const int before = NiceOfThisThread();
  int nice_of_work = 0;
  RunAtLowPriority([&] { nice_of_work = NiceOfThisThread(); });
  EXPECT_EQ(nice_of_work, std::min(before + 10, 19));
  EXPECT_EQ(NiceOfThisThread(), before);
}

TEST(ThreadPriorityTest, AnExceptionOfTheWorkReachesTheCaller) {
  EXPECT_THROW(RunAtLowPriority([] { throw std::bad_alloc(); }), std::bad_alloc);
}

}  // namespace
}  // namespace voxserve::thread_priority_test
