#include "engine/executor/kept_rooms.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "engine/runtime/aligned_bytes.h"

namespace voxserve {
namespace {

constexpr size_t kMostKinds = 256;  // a further kind drops all, since programs come and go
constexpr int kStepsAnOctave = 8;
constexpr int64_t kSmallestStep = 256;
// Kept capacities must be at least this share of the wanted ones. The wanted ones have an eighth more than the expected
// sites, and kept ones may lack about half of that eighth.
constexpr double kLeastSites = 15.0 / 16;
// Kept rooms are replaced if they are more than this many times the wanted ones: their memory, and thread blocks
// without work, then cost more than a new capture.
constexpr double kMost = 1.5;
constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();  // points and sites are numbered by 31 bits

int64_t RoundUp(int64_t count) {
  const auto octave = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(count, 1))));
  const int64_t step = std::max(kSmallestStep, octave / kStepsAnOctave);
  return std::max(step, (count + step - 1) / step * step);
}

bool Serves(int64_t kept, int64_t wanted, double least) {
  return static_cast<double>(kept) >= least * static_cast<double>(wanted) &&
         static_cast<double>(kept) <= std::max(kMost * static_cast<double>(wanted), double{2 * kSmallestStep});
}

}  // namespace

SiteRooms KeptRooms::Fit(const Kind& kind, const SiteRooms& wanted) {
  if (kept_.size() >= kMostKinds && !kept_.contains(kind)) kept_.clear();
  SiteRooms& kept = kept_[kind];
  const auto room_for = [](int64_t rows) { return std::max(rows, std::min(kMostRows, RoundUp(rows))); };
  // Points and uploads must fit completely.
  if (!Serves(kept.points, wanted.points, 1)) kept.points = room_for(wanted.points);
  if (kept.upload_bytes < wanted.upload_bytes) {
    kept.upload_bytes = AlignedBytes(RoundUp(wanted.upload_bytes + wanted.upload_bytes / 8));
  }
  kept.capacities.resize(wanted.capacities.size());
  for (size_t i = 0; i < wanted.capacities.size(); ++i) {
    if (!Serves(kept.capacities[i], wanted.capacities[i], kLeastSites)) {
      kept.capacities[i] = room_for(wanted.capacities[i]);
    }
  }
  kept.axis_bits = wanted.axis_bits;  // no memory depends on it
  return kept;
}

}  // namespace voxserve
