#pragma once

// ToDenseStep writes sites into the cells of a dense grid (to_dense), or into an image seen from above (to_bev). A cell
// of the image has the channels of all cells of its column, joined.

#include "engine/ops/step.h"
#include "kernels/image/sites/site_grid.h"

namespace voxserve {

class ToDenseStep final : public Step {
 public:
  struct Options {
    int level = 0;           // one of Program::key_levels
    BufferSlice in;          // on that level
    BufferSlice out;         // on kSampleLevel, with `depth` times as many channels and a row for every `depth` cells
    kernels::SiteGrid grid;  // the level's spatial shape
    int32_t depth = 1;
  };

  explicit ToDenseStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  const Options options_;
};

}  // namespace voxserve
