#include "engine/ops/boxes/decode_boxes.h"

#include "engine/base/status_macros.h"
#include "engine/ops/boxes/image_channels.h"
#include "engine/ops/launch.h"
#include "engine/runtime/aligned_bytes.h"
#include "kernels/core/scratch.h"

namespace voxserve {
kernels::CenterHeadParams DecodeCenterHeadsStep::ParamsIn(const StepContext& context) const {
  kernels::CenterHeadParams params{.num_samples = context.num_samples(),
                                   .dtype = context.At(heads_[0].images.heatmap).dtype,
                                   .num_heads = static_cast<int32_t>(heads_.size()),
                                   .num_not_finite = NotFiniteBoxes(context),
                                   .workspace = context.scratch};
  for (size_t i = 0; i < heads_.size(); ++i) {
    const Images& images = heads_[i].images;
    kernels::CenterHead& head = params.heads[i];
    head = heads_[i].parameters;
    head.heatmap = ImageAt(context, images.heatmap);
    head.center = ImageAt(context, images.center);
    head.height = ImageAt(context, images.height);
    head.dim = ImageAt(context, images.dim);
    head.rot = ImageAt(context, images.rot);
    head.vel = ImageAt(context, images.vel);
    head.iou = ImageAt(context, images.iou);
    head.boxes = context.At(heads_[i].out).floats();
  }
  return params;
}

kernels::NumberCellsParams DecodeCenterHeadsStep::TableIn(const StepContext& context, int32_t* site_of) const {
  const kernels::Rows rows = context.At(heads_[0].images.heatmap);
  return {.grid = sites_->grid,
          .num_samples = context.num_samples(),
          .keys = context.Keys(sites_->level),
          .num_sites = rows.capacity,
          .device_num_sites = rows.num_rows,
          .site_of = site_of};
}

absl::Status DecodeCenterHeadsStep::Run(const StepContext& context) const {
  kernels::CenterHeadParams params = ParamsIn(context);
  kernels::ScratchVector<int32_t> table(context.execution->memory.get());
  if (sites_) {
    int32_t* site_of = nullptr;
    if (context.cuda() != nullptr) {  // the table lies at the beginning of the scratch memory
      site_of = static_cast<int32_t*>(context.scratch);
      params.workspace = static_cast<char*>(context.scratch) + TableBytes(context);
    } else {
      table.resize(static_cast<size_t>(sites_->grid.num_cells() * context.num_samples()));
      site_of = table.data();
    }
    RETURN_IF_ERROR(LAUNCH(context, TableIn(context, site_of), NumberCells));
    params.site_of = site_of;
  }
  return LAUNCH(context, params, DecodeCenterHeads);
}

size_t DecodeCenterHeadsStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    return static_cast<size_t>(TableBytes(context)) + kernels::cuda::CenterHeadWorkspaceBytes(ParamsIn(context));
  }
  return 0;
}

int64_t DecodeCenterHeadsStep::TableBytes(const StepContext& context) const {
  if (!sites_) return 0;
  return AlignedBytes(sites_->grid.num_cells() * context.num_samples() * static_cast<int64_t>(sizeof(int32_t)));
}

kernels::AnchorHeadParams DecodeAnchorHeadStep::ParamsIn(const StepContext& context) const {
  kernels::AnchorHeadParams params = options_.parameters;
  params.num_samples = context.num_samples();
  params.dtype = context.At(options_.scores).dtype;
  params.scores = ImageAt(context, options_.scores);
  params.residuals = ImageAt(context, options_.residuals);
  params.directions = ImageAt(context, options_.directions);
  params.boxes = context.At(options_.out).floats();
  params.num_not_finite = NotFiniteBoxes(context);
  params.workspace = context.scratch;
  return params;
}

absl::Status DecodeAnchorHeadStep::Run(const StepContext& context) const {
  const kernels::AnchorHeadParams params = ParamsIn(context);
  return LAUNCH(context, params, DecodeAnchorHead);
}

size_t DecodeAnchorHeadStep::ScratchBytes(const StepContext& context) const {
  if constexpr (kernels::kHasCuda) {
    return kernels::cuda::AnchorHeadWorkspaceBytes(ParamsIn(context));
  }
  return 0;
}

}  // namespace voxserve
