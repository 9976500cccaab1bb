#pragma once

// SparseConvStep computes out[o] = epilogue(sum over the rulebook's pairs (k, i, o) of in[i] W_k). A pair says that
// output row o reads input row i at kernel offset k; W_k is the offset's weight matrix. All convolutions (submanifold,
// strided, inverse, transposed, generative, onto given sites) are this sum over different rulebooks. A kernel that is
// not a box has its own list of offsets. A convolution of several groups has zeros in the weights between different
// groups. The batch's plan names the dataflow (dataflow.h) that computes the products.
//
// A step can have a shortcut: a linear layer on the output's level, whose sums are added to the convolution's before
// the activation. If the dataflow does not add them itself (ConvDataflow::AddsShortcut), it leaves the convolution's
// sums in the output, and the linear layer runs after it.
//
// A step can have a layer norm, which alone reads the convolution's output. If the dataflow does not compute it
// (ConvDataflow::Norms), it runs after the convolution.
//
// Sources of the coordinate rules: MinkowskiEngine 0.5.4 (FLOOR, GENERATIVE), spconv 2.3.8 (PADDED, TRANSPOSED) and
// TorchSparse 1.4 (EXPAND; Tang et al., MLSys 2022, Algorithm 3); kernels/coordinates/output_coordinates.h states them.

#include <memory>
#include <utility>
#include <vector>

#include "engine/ops/conv/dataflow.h"
#include "engine/ops/rows/linear.h"
#include "engine/ops/rows/row_norm.h"
#include "engine/ops/step.h"

namespace voxserve {

class SparseConvStep final : public Step {
 public:
  struct Options {
    BufferSlice in, out;  // do not overlap
    int index = 0;        // of the convolution in the program; its plan is StepContext::plans[index]
    ProgramConv conv;
    FusedEpilogue epilogue;  // of the whole step
  };

  // weights: [num_offsets, in channels, out channels]. shortcut: null: none. Its output and its residual are the step's
  // output, it has no bias, and its activation is the step's. norm: null: none. Its input is the step's output.
  SparseConvStep(Options options, std::vector<float> weights, std::unique_ptr<LinearStep> shortcut = nullptr,
                 std::unique_ptr<RowNormStep> norm = nullptr);

  absl::Status Run(const StepContext& context) const override;
  bool NeedsSizes(const std::vector<ConvPlan>& plans) const override;
  // Also returns INVALID_ARGUMENT (BAD_MODEL) for a kernel of more than kernels::kMaxKernelVolume cells.
  absl::Status Upload(WeightUploader& uploader) override;
  size_t ScratchBytes(const StepContext& context) const override;

  const Options& options() const { return options_; }

 private:
  // Returns null where the device does not support the dataflow.
  const Weights* WeightsFor(Dataflow dataflow) const;
  ConvRun RunIn(const StepContext& context) const;
  absl::Status CheckRows(const ConvRun& run) const;

  Options options_;
  // [num_offsets, in channels, out channels]; empty after packing. packed_ then has the weights in the order of each
  // dataflow that the device supports.
  std::vector<float> weights_;
  std::vector<std::pair<Dataflow, Weights>> packed_;
  std::unique_ptr<LinearStep> shortcut_;
  std::unique_ptr<RowNormStep> norm_;
};

}  // namespace voxserve
