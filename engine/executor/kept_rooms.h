#pragma once

// KeptRooms gives batches of one kind the same SiteRooms, which are capacities of arrays (site_rooms.h). The batches
// then use the same memory, so that a captured batch can be replayed (captured_batches.h). SiteForecast alone would not
// do, since the rooms that it asks for differ from batch to batch. Kept rooms change in coarse steps, and only if they
// are too small for a batch or more than 1.5 times as large as wanted.
//
// A CudaExecutor owns it. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "engine/geometry/site_rooms.h"

namespace voxserve {

class KeptRooms {
 public:
  // Batches with equal kinds share their rooms.
  struct Kind {
    uint64_t program = 0;  // Program::id
    int64_t num_samples = 0;
    int32_t points_octave = 0;  // the number of bits of the number of points (a bucket of SiteForecast)

    friend bool operator==(const Kind&, const Kind&) = default;
    template <typename H>
    friend H AbslHashValue(H hash, const Kind& kind) {
      return H::combine(std::move(hash), kind.program, kind.num_samples, kind.points_octave);
    }
  };

  // Returns rooms for the batch: those of the last batch of its kind if they suit `wanted`, else new rooms. wanted:
  // `capacities` from SiteForecast, which are the expected sites plus an eighth, and the batch's exact `points` and
  // `upload_bytes`. The returned rooms have at least these points and bytes, and at least 15/16 of these capacities,
  // which is more than the expected sites. axis_bits is wanted.axis_bits.
  SiteRooms Fit(const Kind& kind, const SiteRooms& wanted);

  size_t num_kinds() const { return kept_.size(); }

 private:
  absl::flat_hash_map<Kind, SiteRooms> kept_;
};

}  // namespace voxserve
