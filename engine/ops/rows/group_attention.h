#pragma once

// GroupAttentionStep computes dot-product attention within groups of a level's sites
// (kernels/rows/attention/group_attention.h).

#include <cstdint>

#include "engine/ops/step.h"
#include "kernels/rows/attention/group_attention.h"

namespace voxserve {

class GroupAttentionStep final : public Step {
 public:
  struct Options {
    // On one level, which is one of its segment's sample_levels (ProgramSegment). `out` has the values' channels, and
    // overlaps no input.
    BufferSlice queries, keys, values, out;
    int order = 0;  // index in the batch's geometry of the level's order from which groups are cut
    int32_t size = 1;
    kernels::GroupTail tail = kernels::GroupTail::kBorrows;
    int num_heads = 1;
    float scale = 1;
  };

  explicit GroupAttentionStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  const Options options_;
};

}  // namespace voxserve
