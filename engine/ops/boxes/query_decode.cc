#include "engine/ops/boxes/query_decode.h"

#include "engine/ops/boxes/image_channels.h"
#include "engine/ops/launch.h"

namespace voxserve {

absl::Status QueryDecodeStep::Run(const StepContext& context) const {
  kernels::QueryDecodeParams params = options_.parameters;
  params.num_samples = context.num_samples();
  params.dtype = context.At(options_.heatmap).dtype;
  params.selection = context.At(options_.selection).floats();
  params.heatmap = ImageAt(context, options_.heatmap);
  params.center = ImageAt(context, options_.center);
  params.height = ImageAt(context, options_.height);
  params.dim = ImageAt(context, options_.dim);
  params.rot = ImageAt(context, options_.rot);
  params.vel = ImageAt(context, options_.vel);
  params.boxes = context.At(options_.out).floats();
  params.num_not_finite = NotFiniteBoxes(context);
  return LAUNCH(context, params, DecodeQueries);
}

}  // namespace voxserve
