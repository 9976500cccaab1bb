#pragma once

// DropReason says why a task was dropped, so that it does not run. Each dropped task counts once, under one reason
// (EngineObserver::OnDropped).

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"

namespace voxserve {

enum class DropReason : uint8_t {
  kCancelled,   // the client cancelled it, or its stream ended, before it ran
  kDraining,    // the server drained: it came too late, or it waited when waiting tasks were refused
  kExpired,     // its deadline passed, or it waited for too long
  kGivenUp,     // it left the queue, since it could no longer end before its deadline
  kQueueFull,   // the queue was full, or another task took its place there
  kSuperseded,  // a newer frame of its stream came
  kUnmeetable,  // it was not accepted, since it could not end before its deadline
};

// The metric's label for each reason. The labels are part of the server's API and are never renamed.
inline constexpr auto kDropReasonNames = std::to_array<std::string_view>(
    {"cancelled", "draining", "expired", "given_up", "queue_full", "superseded", "unmeetable"});
static_assert(kDropReasonNames.size() == static_cast<size_t>(DropReason::kUnmeetable) + 1);

constexpr std::string_view NameOf(DropReason reason) { return kDropReasonNames[static_cast<size_t>(reason)]; }

// Returns the reason for which a task that ended with `status` was dropped. Returns nullopt for an error of the task
// itself or of the server, since such a task does not count as dropped. Never returns kGivenUp: a task that was given
// up ends with the same status as an unmeetable one, so the result is kUnmeetable for both.
std::optional<DropReason> DropReasonOf(const absl::Status& status);

}  // namespace voxserve
