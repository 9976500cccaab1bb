#pragma once

// These steps decode boxes from the outputs of detection heads, which are images (dense, seen from above) or rows on
// sites.

#include <optional>
#include <utility>
#include <vector>

#include "engine/ops/step.h"
#include "kernels/boxes/anchor_head.h"
#include "kernels/boxes/center_head.h"
#include "kernels/image/sites/site_grid.h"

namespace voxserve {

// DecodeCenterHeadsStep decodes CenterPoint's heads, one for each task of the network, all in one step
// (kernels/boxes/center_head.h).
class DecodeCenterHeadsStep final : public Step {
 public:
  // The outputs of one head. Those of all heads have the same dtype. Their rows are image cells, or the sites of one
  // level.
  struct Images {
    BufferSlice heatmap;
    BufferSlice center;
    BufferSlice height;
    BufferSlice dim;
    BufferSlice rot;
    BufferSlice vel;  // none: boxes have no velocities
    BufferSlice iou;  // none: scores are those of the heat map
  };
  struct Head {
    kernels::CenterHead parameters;  // without pointers and pitches
    Images images;
    BufferSlice out;  // rows of kernels/boxes/box_rows.h
  };

  // Says which image cell each site stands for.
  struct Sites {
    int level = 0;           // one of Program::key_levels
    kernels::SiteGrid grid;  // maps sites to the cells of an image
  };

  // heads: 1 to kernels::kMaxCenterHeads. sites: set where all heads have rows on sites; nullopt: they have images.
  DecodeCenterHeadsStep(std::vector<Head> heads, const std::optional<Sites>& sites)
      : heads_(std::move(heads)), sites_(sites) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  kernels::CenterHeadParams ParamsIn(const StepContext& context) const;
  // Returns the parameters that make the table from cells to sites. site_of: the table's memory.
  kernels::NumberCellsParams TableIn(const StepContext& context, int32_t* site_of) const;
  // Returns the bytes of GPU memory for the table from cells to sites; 0 for images.
  int64_t TableBytes(const StepContext& context) const;

  const std::vector<Head> heads_;
  const std::optional<Sites> sites_;
};

// DecodeAnchorHeadStep decodes the anchor head of SECOND (kernels/boxes/anchor_head.h).
class DecodeAnchorHeadStep final : public Step {
 public:
  struct Options {
    kernels::AnchorHeadParams parameters;  // without pointers and pitches
    // Images, all of the same dtype.
    BufferSlice scores;
    BufferSlice residuals;
    BufferSlice directions;
    BufferSlice out;  // rows of kernels/boxes/box_rows.h
  };

  explicit DecodeAnchorHeadStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  kernels::AnchorHeadParams ParamsIn(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
