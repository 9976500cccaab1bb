#pragma once

// A network ready to run: what the compiler makes of a Graph, and the executor runs for every batch.
//
// Two passes. The geometry pass makes voxels, coordinate levels and rulebooks from coordinates alone; the feature pass
// is the list of steps below, in order. Batch norms are folded, epilogues fused, and concatenations written in place
// where that is possible, so a step is a kernel call and a buffer is real memory.
//
// Immutable after compilation; shared by all threads.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/graph/plan.h"
#include "engine/tensor/tensor.h"
#include "kernels/epilogue.h"

namespace voxserve {

// Memory of the feature pass: one row per site of a level. Sizes follow from the batch, so the executor places buffers
// for each batch; two whose [first_step, last_step] do not meet may share memory.
struct Buffer {
  int level = 0;
  DType dtype = DType::kFloat32;
  int32_t channels = 0;
  int64_t pitch = 0;  // values a row; rows are padded to 16 bytes
  int first_step = 0;
  int last_step = 0;
};

// Columns [column, column + channels) of a buffer.
struct BufferSlice {
  int buffer = -1;  // -1: none
  int32_t column = 0;
  int32_t channels = 0;
};

// Weights in the order in which the step's kernel reads them; all [..] below are float32.
using StepValues = std::vector<float>;

struct FusedEpilogue {
  StepValues bias;       // [out channels]; empty: none
  BufferSlice residual;  // added before the activation
  kernels::ActivationFunction activation = kernels::ActivationFunction::kNone;
};

struct VoxelFeaturesStep {
  BufferSlice out;
};

struct SparseConvStep {
  BufferSlice in, out;
  int rulebook = 0;  // in Program::rulebooks
  ConvPlan plan;
  StepValues weights;  // packed for fetch-on-demand, else [K, in, out]
  FusedEpilogue epilogue;
};

struct LinearStep {
  BufferSlice in, out;
  StepValues weights;  // [in, out]
  FusedEpilogue epilogue;
};

// A batch norm, addition or activation that nothing could absorb, or a concatenation's copy.
struct ScaleShiftStep {
  BufferSlice in, out;
  StepValues scale;  // [channels]; empty: 1
  FusedEpilogue epilogue;
};

struct ArgmaxStep {
  BufferSlice in, out;
};

// Writes an output of the network.
struct VoxelToPointStep {
  BufferSlice in;
  bool is_labels = false;  // else scores
};

using StepOp =
    std::variant<VoxelFeaturesStep, SparseConvStep, LinearStep, ScaleShiftStep, ArgmaxStep, VoxelToPointStep>;

struct Step {
  std::string name;            // of the graph's node that it began as
  bool is_for_labels = false;  // what needs it; a step that only scores need is skipped where nobody asked for them
  bool is_for_scores = false;
  StepOp op;
};

// A rulebook that steps walk. An inverse convolution walks its partner's with the pairs swapped.
struct ProgramRulebook {
  int spec = 0;  // in Graph::levels.rulebooks()
  bool is_swapped = false;
  kernels::MapSearch map_search = kernels::MapSearch::kMerge;
};

struct Program {
  int dimension = 3;
  VoxelizeOp voxelize;
  LevelTable levels;
  std::vector<ProgramRulebook> rulebooks;
  std::vector<Buffer> buffers;
  std::vector<Step> steps;
  int num_classes = 0;
  bool has_labels = false;
  bool has_scores = false;
  DType label_dtype = DType::kUint8;  // or kUint16
  int64_t weight_bytes = 0;           // that the steps hold
};

}  // namespace voxserve
