#pragma once

// QueryDecodeStep decodes boxes from the queries of a selection (kernels/boxes/query_decode.h).

#include "engine/ops/step.h"
#include "kernels/boxes/query_decode.h"

namespace voxserve {

class QueryDecodeStep final : public Step {
 public:
  struct Options {
    kernels::QueryDecodeParams parameters;  // without pointers and pitches
    BufferSlice selection;                  // a SelectStep's
    // Rows of the selection's queries, all of the same dtype.
    BufferSlice heatmap;
    BufferSlice center;
    BufferSlice height;
    BufferSlice dim;
    BufferSlice rot;
    BufferSlice vel;  // none: boxes have no velocities
    BufferSlice out;  // rows of kernels/boxes/box_rows.h
  };

  explicit QueryDecodeStep(const Options& options) : options_(options) {}
  const Options& options() const { return options_; }

  absl::Status Run(const StepContext& context) const override;

 private:
  const Options options_;
};

}  // namespace voxserve
