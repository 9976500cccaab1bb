#pragma once

// GatherStep writes a row for each query of a selection (kernels/boxes/gather_queries.h).

#include <cstdint>

#include "engine/ops/step.h"
#include "kernels/boxes/gather_queries.h"

namespace voxserve {

class GatherStep final : public Step {
 public:
  struct Options {
    kernels::GatherOf of = kernels::GatherOf::kFeatures;
    BufferSlice selection;  // a SelectStep's
    BufferSlice image;      // for kFeatures: images of all samples; else none
    int32_t num_rows = 0;   // of an image
    int32_t num_columns = 0;
    BufferSlice out;  // as many rows as `selection`; does not overlap `image`
  };

  explicit GatherStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  const Options options_;
};

}  // namespace voxserve
