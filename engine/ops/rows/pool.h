#pragma once

// PoolStep reduces, for every output row, the input rows that the rulebook lists. The pool is strided, submanifold, or
// inverse (unpooling). kernels/rows/pool.h defines the result. The step also computes a batch norm, addition and
// activation behind the pool.

#include <utility>

#include "engine/ops/step.h"
#include "kernels/rows/pool.h"

namespace voxserve {

class PoolStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // the same channels; do not overlap
    int rulebook = 0;     // index in the batch's geometry; a GPU reads its neighbours form
    kernels::PoolReduce reduce = kernels::PoolReduce::kMax;
    Weights scale;  // [channels]; empty: 1
    FusedEpilogue epilogue;
  };

  explicit PoolStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  absl::Status Upload(WeightUploader& uploader) override;

 private:
  Options options_;
};

}  // namespace voxserve
