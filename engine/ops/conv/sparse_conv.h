#pragma once

// Sparse convolution: out[o] = epilogue(sum over the rulebook's pairs (k, i, o) of in[i] W_k). Submanifold, strided,
// inverse, transposed and generative ones, and those onto given sites, differ in their rulebook alone; kernels that are
// no box in its offsets, and groups in zeros of the weights. The batch's plan names the dataflow (dataflow.h) that
// multiplies.
//
// Sources of the coordinate rules: MinkowskiEngine 0.5.4 (FLOOR, GENERATIVE), spconv 2.3.8 (PADDED, TRANSPOSED) and
// TorchSparse 1.4 (EXPAND; Tang et al., MLSys 2022, Algorithm 3); kernels/coordinates/output_coordinates.h states them.

#include <utility>
#include <vector>

#include "engine/ops/conv/dataflow.h"
#include "engine/ops/step.h"

namespace voxserve {

class SparseConvStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // do not overlap
    int conv = 0;         // its index among the program's convolutions: its plan is StepContext::plans[conv]
    int rulebook = 0;     // of the batch's geometry
    ConvShape shape;
    FusedEpilogue epilogue;
    bool on_cuda = false;  // where it will run
  };

  // weights: [num_offsets, in channels, out channels].
  SparseConvStep(Options options, std::vector<float> weights);

  absl::Status Run(const StepContext& context) const override;
  bool IsCapturable(const std::vector<Buffer>&) const override { return true; }
  bool NeedsSizes(const std::vector<ConvPlan>& plans) const override;
  absl::Status Upload(WeightUploader& uploader) override;
  size_t ScratchBytes(const StepContext& context) const override;

  const Options& options() const { return options_; }

 private:
  // Null: the device does not serve the dataflow.
  const Weights* WeightsFor(Dataflow dataflow) const;
  ConvRun RunIn(const StepContext& context) const;
  absl::Status CheckRows(const ConvRun& run) const;

  Options options_;
  // [num_offsets, in channels, out channels] until they are packed, by dataflow, for those that the device serves.
  std::vector<float> weights_;
  std::vector<std::pair<Dataflow, Weights>> packed_;
};

}  // namespace voxserve
