#pragma once

// Why a task did not run. Every such task counts once, under one of these reasons (EngineObserver::OnDropped).

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"

namespace voxserve {

enum class DropReason : uint8_t {
  kCancelled,
  kDraining,    // it came too late: the server takes no more
  kExpired,     // its deadline passed, or it waited for too long
  kGivenUp,     // it left the queue, since it could not end before its deadline any more
  kQueueFull,   // the queue was full, or a more urgent task took its place there
  kSuperseded,  // a newer frame of its stream came
  kUnmeetable,  // it was not taken, since it could not end before its deadline
};

// By reason. Part of the API: never renamed.
inline constexpr auto kDropReasonNames = std::to_array<std::string_view>(
    {"cancelled", "draining", "expired", "given_up", "queue_full", "superseded", "unmeetable"});
static_assert(kDropReasonNames.size() == static_cast<size_t>(DropReason::kUnmeetable) + 1);

constexpr std::string_view NameOf(DropReason reason) { return kDropReasonNames[static_cast<size_t>(reason)]; }

// Why a task did not run that got this error. None where the task itself is at fault, or the server: those are not
// dropped. Never kGivenUp, which gets the same error as kUnmeetable.
std::optional<DropReason> DropReasonOf(const absl::Status& status);

}  // namespace voxserve
