#pragma once

// CapacityCache gives batches of one kind the same BatchCapacities, which are capacities of arrays
// (batch_capacities.h). The batches then use the same memory, so that a captured batch can be replayed
// (captured_batches.h). SiteForecast alone would not do, since the capacities that it asks for differ from batch to
// batch. A kind is a program, a number of samples and half an octave of points. A kept capacity changes in coarse
// steps, and only if it is too small for a batch or more than 1.75 times as large as wanted.
//
// A CudaExecutor owns it. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "engine/geometry/batch_capacities.h"

namespace voxserve {

class CapacityCache {
 public:
  // Returns capacities for the batch: of each capacity that of the last batch of its kind, or a new one if that does
  // not suit `wanted`. program: Program::id. wanted: `sites` from SiteForecast, which are the expected sites plus
  // an eighth, and the batch's exact `points` and `upload_bytes`. The returned capacities have at least these points
  // and bytes, at least 15/16 of these sites, which is more than the expected sites, and at least these axis_bits.
  BatchCapacities Fit(uint64_t program, int64_t num_samples, const BatchCapacities& wanted);

  size_t num_kinds() const { return kept_.size(); }

 private:
  struct Kind {
    uint64_t program = 0;
    int64_t num_samples = 0;
    int32_t half_octave = 0;  // of points

    friend bool operator==(const Kind&, const Kind&) = default;
    template <typename H>
    friend H AbslHashValue(H hash, const Kind& kind) {
      return H::combine(std::move(hash), kind.program, kind.num_samples, kind.half_octave);
    }
  };

  absl::flat_hash_map<Kind, BatchCapacities> kept_;
};

}  // namespace voxserve
