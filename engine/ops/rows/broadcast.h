#pragma once

// BroadcastStep brings a sample's row to each site of the sample. The sample's row is added to the site's row,
// multiplied with it, or copied (to columns of a concatenation).

#include <utility>

#include "engine/ops/step.h"

namespace voxserve {

class BroadcastStep final : public Step {
 public:
  enum class Function { kCopy, kAdd, kMultiply };

  struct Options {
    BufferSlice sites;    // on one of its segment's sample_levels; empty for kCopy
    BufferSlice samples;  // on kSampleLevel
    BufferSlice out;      // on the sites' level; all with the same channels
    Function function = Function::kCopy;
    FusedEpilogue epilogue;
  };

  explicit BroadcastStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;

 private:
  const Options options_;
};

}  // namespace voxserve
