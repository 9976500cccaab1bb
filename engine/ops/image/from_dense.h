#pragma once

// FromDenseStep copies to every site the row of its cell in a dense grid.

#include "engine/ops/step.h"
#include "kernels/image/sites/site_grid.h"

namespace voxserve {

class FromDenseStep final : public Step {
 public:
  struct Options {
    int level = 0;           // one of Program::key_levels
    BufferSlice in;          // on kSampleLevel, one row per cell of `grid`
    BufferSlice out;         // on that level, with the same channels
    kernels::SiteGrid grid;  // the level's spatial shape
  };

  explicit FromDenseStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  const Options options_;
};

}  // namespace voxserve
