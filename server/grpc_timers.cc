#include "server/grpc_timers.h"

#include <grpc/support/time.h>

namespace voxserve {
namespace {

constexpr int kSoonMs = 1;  // A timer that is due already would not wake gRPC's thread.

}  // namespace

GrpcTimers::GrpcTimers() : is_set_(std::make_shared<std::atomic<bool>>(false)), thread_([this] { Wake(); }) {}

void GrpcTimers::Wake() {
  if (is_set_->exchange(true)) return;
  const gpr_timespec soon = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(kSoonMs, GPR_TIMESPAN));
  alarm_.Set(soon, [is_set = is_set_](bool /*ok*/) { *is_set = false; });
}

}  // namespace voxserve
