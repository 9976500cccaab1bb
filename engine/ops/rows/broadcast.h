#pragma once

// A sample's row at each of its sites: added to the site's, multiplied with it, or copied (into its columns of a
// concatenation).

#include <utility>

#include "engine/ops/step.h"

namespace voxserve {

class BroadcastStep final : public Step {
 public:
  enum class Function { kCopy, kAdd, kMultiply };

  struct Options {
    BufferSlice sites;    // on a level whose samples are known; of kCopy: none
    BufferSlice samples;  // on kSampleLevel
    BufferSlice out;      // on the sites' level; all with the same channels
    Function function = Function::kCopy;
    FusedEpilogue epilogue;
  };

  explicit BroadcastStep(Options options) : options_(std::move(options)) {}

  absl::Status Run(const StepContext& context) const override;
  bool IsCapturable(const std::vector<Buffer>&) const override { return true; }

 private:
  const Options options_;
};

}  // namespace voxserve
