#pragma once

// This header lists the stages of a request, in their order. Responses, metrics, the status page and the logs of
// benchmarks all use the names of the table below. The server runs `decode` and `encode`, the engine all others.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/time/time.h"

namespace voxserve {

enum class Stage : uint8_t {
  kDecode,
  kQueue,
  kCopyIn,
  kSample,  // only if farthest points are selected
  kVoxelize,
  kGeometry,
  kFeatures,
  kHead,
  kCopyOut,  // only on a GPU
  kEncode,
};

// Names by stage. They are part of the API and never renamed.
inline constexpr auto kStageNames = std::to_array<std::string_view>(
    {"decode", "queue", "copy_in", "sample", "voxelize", "geometry", "features", "head", "copy_out", "encode"});
static_assert(kStageNames.size() == static_cast<size_t>(Stage::kEncode) + 1);

constexpr std::string_view NameOf(Stage stage) { return kStageNames[static_cast<size_t>(stage)]; }

struct StageTime {
  Stage stage = Stage::kDecode;
  absl::Duration duration;
};

}  // namespace voxserve
