#pragma once

// Boxes of detection heads' images, or of what heads say of sites.

#include <optional>
#include <utility>
#include <vector>

#include "engine/ops/step.h"
#include "kernels/boxes/anchor_head.h"
#include "kernels/boxes/center_head.h"
#include "kernels/image/site_grid.h"

namespace voxserve {

// CenterPoint's: several tasks' heads at once.
class DecodeCenterHeadsStep final : public Step {
 public:
  // All images of all heads have one dtype. Their rows are cells, or the sites of one level.
  struct Images {
    BufferSlice heatmap;
    BufferSlice center;
    BufferSlice height;
    BufferSlice dim;
    BufferSlice rot;
    BufferSlice vel;  // none: boxes have no velocities
  };
  struct Head {
    kernels::CenterHead parameters;  // but for pointers and pitches
    Images images;
    BufferSlice out;  // rows of kernels/boxes/box_rows.h
  };

  // The sites whose rows stand for images.
  struct Sites {
    int level = 0;           // of Program::key_levels
    kernels::SiteGrid grid;  // to the cells of an image
  };

  // heads: 1 to kernels::kMaxCenterHeads. sites: of all of them; none: they have images.
  DecodeCenterHeadsStep(std::vector<Head> heads, const std::optional<Sites>& sites)
      : heads_(std::move(heads)), sites_(sites) {}

  absl::Status Run(const StepContext& context) const override;
  bool IsCapturable(const std::vector<Buffer>&) const override { return true; }
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  kernels::CenterHeadParams ParamsIn(const StepContext& context) const;
  // site_of: memory for the table.
  kernels::NumberCellsParams TableIn(const StepContext& context, int32_t* site_of) const;
  // The memory of a GPU that the table from cells to sites takes; 0 for images.
  int64_t TableBytes(const StepContext& context) const;

  const std::vector<Head> heads_;
  const std::optional<Sites> sites_;
};

// SECOND's.
class DecodeAnchorHeadStep final : public Step {
 public:
  struct Options {
    kernels::AnchorHeadParams parameters;  // but for pointers and pitches
    // Images of one dtype.
    BufferSlice scores;
    BufferSlice residuals;
    BufferSlice directions;
    BufferSlice out;  // rows of kernels/boxes/box_rows.h
  };

  explicit DecodeAnchorHeadStep(const Options& options) : options_(options) {}

  absl::Status Run(const StepContext& context) const override;
  bool IsCapturable(const std::vector<Buffer>&) const override { return true; }
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  kernels::AnchorHeadParams ParamsIn(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
