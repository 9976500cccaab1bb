#pragma once

// Helpers of the steps that read images, rows of sites or rows of queries as kernels::ImageChannels and count what is
// not finite.

#include "engine/ops/output_collector.h"
#include "engine/ops/step.h"
#include "kernels/boxes/box_candidates.h"

namespace voxserve {

inline kernels::ImageChannels ImageAt(const StepContext& context, const BufferSlice& slice) {
  const kernels::Rows image = context.At(slice);
  return {.data = image.data, .pitch = image.pitch};
}

// Returns the counter of boxes that are not finite; null if memory is measured without a batch.
inline uint32_t* NotFiniteBoxes(const StepContext& context) {
  return context.outputs() == nullptr ? nullptr : context.outputs()->not_finite_boxes();
}

}  // namespace voxserve
