#include "engine/base/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

#include <exception>
#include <system_error>
#include <thread>

namespace voxserve {
namespace {

constexpr int kNiceDifference = 10;

void LowerThreadPriority() {
  const auto thread = static_cast<id_t>(gettid());  // Linux has a nice value for each thread; the highest is 19
  setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + kNiceDifference);
}

}  // namespace

void RunAtLowPriority(const std::function<void()>& work) {
  std::exception_ptr exception;
  std::thread thread;
  try {
    thread = std::thread([&] {
      LowerThreadPriority();
      try {
        work();
      } catch (...) {
        exception = std::current_exception();
      }
    });
  } catch (const std::system_error&) {
    return work();
  }
  thread.join();
  if (exception) std::rethrow_exception(exception);
}

}  // namespace voxserve
