#pragma once

// KeptRooms gives batches of one kind the same rooms (capacities, site_rooms.h). The batches then use the same memory,
// so that a captured batch can be replayed (captured_batches.h). A forecast asks for other rooms with every batch. Kept
// rooms change in coarse steps, and only if a batch does not fit them or is far smaller.
//
// An executor owns it. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "engine/geometry/site_rooms.h"

namespace voxserve {

class KeptRooms {
 public:
  // Batches of one kind share their rooms.
  struct Kind {
    uint64_t program = 0;  // Program::id
    int64_t num_samples = 0;
    int32_t points_octave = 0;  // the bits of the number of points: SiteForecast's buckets

    friend bool operator==(const Kind&, const Kind&) = default;
    template <typename H>
    friend H AbslHashValue(H hash, const Kind& kind) {
      return H::combine(std::move(hash), kind.program, kind.num_samples, kind.points_octave);
    }
  };

  // Returns rooms for the batch: the rooms of the last batch of its kind if they fit, else new rooms. wanted: from
  // SiteForecast, which adds an eighth to the expected sites; its `points` and `upload_bytes` are the batch's true
  // numbers. The returned `points` and `upload_bytes` are enough for the batch, `capacities` are enough for the
  // expected sites, and axis_bits is wanted.axis_bits.
  SiteRooms Fit(const Kind& kind, const SiteRooms& wanted);

  size_t num_kinds() const { return kept_.size(); }

 private:
  absl::flat_hash_map<Kind, SiteRooms> kept_;
};

}  // namespace voxserve
