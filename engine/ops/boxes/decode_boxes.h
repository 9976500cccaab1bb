#pragma once

// Boxes of detection heads' images.

#include <utility>
#include <vector>

#include "engine/ops/step.h"
#include "kernels/boxes/anchor_head.h"
#include "kernels/boxes/center_head.h"

namespace voxserve {

// CenterPoint's: several tasks' heads at once.
class DecodeCenterHeadsStep final : public Step {
 public:
  // Of one dtype, all of them and of all heads.
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

  // 1 to kernels::kMaxCenterHeads.
  explicit DecodeCenterHeadsStep(std::vector<Head> heads) : heads_(std::move(heads)) {}

  absl::Status Run(const StepContext& context) const override;
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  kernels::CenterHeadParams ParamsIn(const StepContext& context) const;

  const std::vector<Head> heads_;
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
  size_t ScratchBytes(const StepContext& context) const override;
  bool has_scratch_of_samples() const override { return true; }

 private:
  kernels::AnchorHeadParams ParamsIn(const StepContext& context) const;

  const Options options_;
};

}  // namespace voxserve
