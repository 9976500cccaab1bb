#pragma once

// The table of dataflows: the ways in which a sparse convolution is multiplied. The compiler, plan files, the tuner and
// benchmarks iterate over it, so that what a dataflow means stands in its entry alone.
//
// To add one: a value of Dataflow (conv_plan.h) and of plan.proto's, an entry in files of its own, and its line in
// dataflow.cc.
//
// Entries are constants, shared by all threads.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "engine/geometry/rulebook_forms.h"
#include "engine/ops/conv_plan.h"
#include "engine/ops/step.h"
#include "engine/tensor/dtype.h"
#include "kernels/conv/conv_operands.h"
#include "kernels/conv/matmul_grouping.h"

namespace voxserve {

// What the compiler knows of a convolution.
struct ConvShape {
  int32_t in_channels = 0;
  int32_t out_channels = 0;
  DType dtype = DType::kFloat32;  // of input, weights and residual
  int32_t num_offsets = 0;        // K
  bool allow_tf32 = false;        // float32 factors may be rounded to TensorFloat-32
  bool is_symmetric = false;      // kernels::ConvGeometry::IsSymmetric
};

// A dataflow that a device serves for one convolution.
struct ServedDataflow {
  Dataflow dataflow = {};
  // Values of ConvPlan::block besides the default; none: blocks of any number of rows, which may say nothing.
  std::optional<std::vector<kernels::ConvBlock>> blocks = {};

  bool Serves(const ConvPlan& plan) const;
};

// One convolution of the batch under way.
struct ConvRun {
  const StepContext& context;
  const ConvPlan& plan;
  const ConvShape& shape;
  int rulebook = 0;                // of the batch's geometry
  kernels::ConvOperands operands;  // weights as PackWeights of the plan's dataflow has them
};

class ConvDataflow {
 public:
  virtual ~ConvDataflow() = default;

  virtual Dataflow id() const = 0;
  // The word in plan files, behind plan.proto's "DATAFLOW_".
  virtual absl::string_view name() const = 0;
  // True where the dataflow reads ConvPlan::grouping, so that plan files have it.
  virtual bool has_grouping() const { return false; }
  // True where a graph that captured Launch may be replayed for another batch: Launch reads no size on the host.
  virtual bool is_capturable() const = 0;

  // Nothing where the device does not serve the convolution. on_cuda: the current GPU; else the CPU.
  virtual std::optional<ServedDataflow> Serves(const ConvShape& shape, bool on_cuda) const = 0;
  // The forms of a GPU's rulebook that Launch reads; a CPU's has one. is_swapped: the convolution walks it from outputs
  // to inputs.
  virtual RulebookForms Forms(bool is_swapped) const = 0;
  // What a tuner measures, in this order: `base`, which is by this dataflow, with other choices. maps: the sizes of a
  // batch's; without offsets where they are not known.
  virtual std::vector<ConvPlan> Candidates(const ServedDataflow& served, const ConvPlan& base,
                                           const kernels::MatmulGroupingParams& maps) const = 0;

  // weights: [num_offsets, in channels, out channels]. In the order that Launch reads where they are stored as
  // shape.dtype.
  virtual std::vector<float> PackWeights(const ConvShape& shape, const std::vector<float>& weights) const = 0;
  // Device memory that Launch finds in StepContext::scratch. Asked before the operands have memory.
  virtual size_t WorkspaceBytes(const ConvRun&) const { return 0; }
  // On the context's device; on a GPU it queues work on the stream. The errors are those of Step::Run.
  virtual absl::Status Launch(const ConvRun& run) const = 0;
};

// Every dataflow once, in the order in which the tuner measures them. The first that a device serves at all serves
// every convolution there.
const std::vector<const ConvDataflow*>& Dataflows();

const ConvDataflow& DataflowOf(Dataflow id);

// "64 rows", "128 x 96", "128 x 96 by warps, split 2".
std::string Describe(const kernels::ConvBlock& block);

// In the table's order; never empty.
std::vector<ServedDataflow> ServedDataflows(const ConvShape& shape, bool on_cuda);

}  // namespace voxserve
