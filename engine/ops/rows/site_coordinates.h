#pragma once

// SiteCoordinatesStep writes the coordinates of a level's sites to rows.

#include "engine/ops/step.h"
#include "kernels/image/sites/site_coordinates.h"

namespace voxserve {

class SiteCoordinatesStep final : public Step {
 public:
  // level: one of Program::key_levels. parameters: scale and shift. out: on that level, a column for each axis.
  SiteCoordinatesStep(int level, const kernels::SiteCoordinatesParams& parameters, const BufferSlice& out)
      : level_(level), parameters_(parameters), out_(out) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  const int level_;
  const kernels::SiteCoordinatesParams parameters_;
  const BufferSlice out_;
};

}  // namespace voxserve
