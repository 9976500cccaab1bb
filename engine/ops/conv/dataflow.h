#pragma once

// This is the table of dataflows. A dataflow is a way to compute the matrix products of a sparse convolution. The
// compiler, plan files, the tuner and benchmarks iterate over the table, so that only the entry of a dataflow knows how
// the dataflow computes.
//
// To add a dataflow, add a value to Dataflow (conv_plan.h) and to plan.proto's enum, write its ConvDataflow in files of
// its own, and add the entry to the table in dataflow.cc.
//
// Entries are constants, shared by all threads.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/geometry/rulebook_forms.h"
#include "engine/ops/conv_plan.h"
#include "engine/ops/step.h"
#include "engine/tensor/dtype.h"
#include "kernels/conv/conv_operands.h"
#include "kernels/conv/matmul_grouping.h"
#include "kernels/rows/row_norm.h"

namespace voxserve {

// ServedDataflow is a dataflow that a device supports for one convolution.
struct ServedDataflow {
  Dataflow dataflow = {};
  // The values of ConvPlan::block (the part of the output that is computed at once) that are valid besides the default.
  // nullopt: a block of any number of rows is valid, but the dataflow may ignore it.
  std::optional<std::vector<kernels::ConvBlock>> blocks = {};

  bool Serves(const ConvPlan& plan) const;
};

// A convolution of a program, as the compiler made it. Its index is its place in the order in which the convolutions
// run; a plan has an entry for each.
struct ProgramConv {
  std::string node;  // name of the graph's node
  int step = 0;
  int rulebook = 0;  // index in the program's rulebooks, and in the batch's geometry
  int32_t in_channels = 0;
  int32_t out_channels = 0;
  // Of input, weights and residual. kInt8: it multiplies in 8 bits (engine/ops/int8), which a GPU computes as an
  // implicit GEMM.
  DType dtype = DType::kFloat32;
  int32_t num_offsets = 0;                  // K
  bool allow_tf32 = false;                  // float32 factors may be rounded to TensorFloat-32
  bool is_symmetric = false;                // kernels::ConvGeometry::IsSymmetric
  bool is_on_cuda = false;                  // true: runs on the current GPU, false: on the CPU
  std::vector<ServedDataflow> served = {};  // ServedDataflows()

  // Returns null where the device does not support the dataflow for this convolution.
  const ServedDataflow* Find(Dataflow dataflow) const;
  bool Serves(const ConvPlan& plan) const {
    const ServedDataflow* const found = Find(plan.dataflow);
    return found != nullptr && found->Serves(plan);
  }
};

// ConvRun is one convolution of the current batch.
struct ConvRun {
  const StepContext& context;
  const ConvPlan& plan;
  const ProgramConv& conv;
  // The weights are in the order of the dataflow's PackWeights. Launch gets a shortcut only if AddsShortcut.
  kernels::ConvOperands operands;
  // The layer norm of the convolution's output; nullopt: none. Launch gets one only if Norms, and then does not write
  // the output of the operands.
  std::optional<kernels::RowNormParams> norm = {};
};

class ConvDataflow {
 public:
  virtual ~ConvDataflow() = default;

  virtual Dataflow id() const = 0;
  // The name in plan files, without plan.proto's prefix "DATAFLOW_".
  virtual absl::string_view name() const = 0;
  // Returns true if the dataflow reads ConvPlan::grouping. Plan files then hold the grouping.
  virtual bool has_grouping() const { return false; }
  // Returns true if a CUDA graph that captured Launch may be replayed for another batch, because Launch reads no size
  // on the host.
  virtual bool is_capturable() const = 0;

  // Returns nullopt if the convolution's device does not support it.
  virtual std::optional<ServedDataflow> Serves(const ProgramConv& conv) const = 0;
  // Returns the forms of a rulebook that Launch reads on a GPU; on a CPU a rulebook has one form. is_swapped: the
  // convolution reads the rulebook from outputs to inputs.
  virtual RulebookForms Forms(bool is_swapped) const = 0;
  // Returns the plans that a tuner measures, in this order. They are variants of `base`, which uses this dataflow.
  // maps: the sizes of a batch's kernel maps; it has no offsets if the sizes are not known.
  virtual std::vector<ConvPlan> Candidates(const ServedDataflow& served, const ConvPlan& base,
                                           const kernels::MatmulGroupingParams& maps) const = 0;

  // Returns the weights, [num_offsets, in channels, out channels], in the order in which Launch reads them after they
  // have been converted to conv.dtype.
  virtual std::vector<float> PackWeights(const ProgramConv& conv, const std::vector<float>& weights) const = 0;
  // Returns the bytes of device memory that Launch needs in StepContext::scratch. Called before the operands have
  // memory.
  virtual size_t WorkspaceBytes(const ConvRun&) const { return 0; }
  // Returns true if Launch adds the operands' shortcut to the sums.
  virtual bool AddsShortcut(const ConvRun&) const { return false; }
  // Returns true if Launch computes run.norm. Its bytes are those of a norm that runs after the convolution.
  virtual bool Norms(const ConvRun&) const { return false; }
  // Runs on the context's device; on a GPU it queues work on the stream. The errors are those of Step::Run.
  virtual absl::Status Launch(const ConvRun& run) const = 0;
};

// Returns the table: every dataflow once, in the order in which the tuner measures them. On each device, one dataflow
// supports every convolution of floats, and one every convolution in 8 bits; it stands before all others that the
// device supports.
const std::vector<const ConvDataflow*>& Dataflows();

const ConvDataflow& DataflowOf(Dataflow id);

// Returns INTERNAL if the rows of a convolution's matrices are not those of its rulebook, a kernels::RulebookView or
// NeighboursView.
template <typename Map>
absl::Status CheckRows(const std::string& name, const Map& map, int64_t in_rows, int64_t out_rows) {
  if (in_rows == map.num_in_rows && out_rows == map.num_out_rows) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("convolution \"", name, "\" of ", in_rows, " to ", out_rows,
                                          " rows got a rulebook of ", map.num_in_rows, " to ", map.num_out_rows));
}

// Returns INVALID_ARGUMENT (BAD_MODEL) for a kernel of more cells than a GPU can have (kernels::kMaxKernelVolume).
absl::Status CheckKernelVolume(const ProgramConv& conv);

// Returns a block as text: "64 rows", "128 x 96", "128 x 96 by warps, split 2".
std::string Describe(const kernels::ConvBlock& block);

// Returns the dataflows that the convolution's device supports for it, in the order of Dataflows(). There is always at
// least one.
std::vector<ServedDataflow> ServedDataflows(const ProgramConv& conv);

}  // namespace voxserve
