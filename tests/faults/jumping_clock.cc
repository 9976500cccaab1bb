// Puts itself between the program, with its shared libraries, and the C library's wall clock, which is then ahead or
// behind as the site "clock" says. Monotonic clocks are left alone.
//
// Abseil's locks wait with futexes until a time of the wall clock. The kernel ends such a wait earlier or later when
// that clock is set. So they are made of short waits here, each of which looks at the clock anew.

#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <ctime>

#include "tests/faults/fault.h"

namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;
constexpr int64_t kSlice = 20'000'000;  // ns of one short wait

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int RealClock(clockid_t clock, timespec* time) {
  static auto* const next = Next<int(clockid_t, timespec*)>("clock_gettime");
  return next(clock, time);
}

long RealSyscall(long number, const long (&a)[6]) {
  static auto* const next = Next<long(long, ...)>("syscall");
  return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

bool IsWallClock(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

int64_t RealNow() {
  timespec now{};
  RealClock(CLOCK_REALTIME, &now);
  return now.tv_sec * kNanoseconds + now.tv_nsec;
}

// Waits like the kernel whose clock has jumped.
long WaitByWallClock(const long (&a)[6]) {
  const auto* const until = reinterpret_cast<const timespec*>(a[3]);
  const int64_t deadline = until->tv_sec * kNanoseconds + until->tv_nsec;
  for (;;) {
    const int64_t now = RealNow();
    const int64_t left = deadline - (now + voxserve::ClockJumpSeconds() * kNanoseconds);
    const int64_t end = now + std::clamp<int64_t>(left, 0, kSlice);
    const timespec slice = {.tv_sec = end / kNanoseconds, .tv_nsec = end % kNanoseconds};
    const long result = RealSyscall(SYS_futex, {a[0], a[1], a[2], reinterpret_cast<long>(&slice), a[4], a[5]});
    if (result != -1 || errno != ETIMEDOUT || left <= kSlice) return result;
  }
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const int result = RealClock(clock, time);
  if (result == 0 && IsWallClock(clock)) time->tv_sec += voxserve::ClockJumpSeconds();
  return result;
}

int gettimeofday(timeval* time, void* zone) noexcept {
  static auto* const next = Next<int(timeval*, void*)>("gettimeofday");
  const int result = next(time, zone);
  if (result == 0) time->tv_sec += voxserve::ClockJumpSeconds();
  return result;
}

time_t time(time_t* result) noexcept {
  timespec now{};
  RealClock(CLOCK_REALTIME, &now);
  now.tv_sec += voxserve::ClockJumpSeconds();
  if (result != nullptr) *result = now.tv_sec;
  return now.tv_sec;
}

long syscall(long number, ...) noexcept {
  long a[6];
  va_list list;
  va_start(list, number);
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  const bool waits_by_wall_clock = number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME) != 0 && a[3] != 0;
  return waits_by_wall_clock ? WaitByWallClock(a) : RealSyscall(number, a);
}

}  // extern "C"
