#pragma once

// A Program is a network ready to run: the compiler makes it from a Graph, and the executor runs it for every batch.
//
// A batch runs in two passes. The geometry pass makes voxels, coordinate levels and rulebooks only from coordinates. A
// level is the set of sites (occupied voxels) at one unit; a rulebook says which input rows each output row of a
// convolution reads (engine/model/levels.h). The feature pass runs the program's list of steps, in order. A prune by
// score ends a segment: after the prune both passes run again, for the levels whose sites its scores decide. Prunes
// that do not depend on each other share a segment.
// Batch norms are folded, epilogues fused, and concatenations written in place where possible, so a step is one kernel
// call and a buffer is real memory.
//
// A Program is immutable after compilation (and Upload, for a GPU); all threads of its device share it.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/base/unique_id.h"
#include "engine/compiler/plan_table.h"
#include "engine/model/graph.h"
#include "engine/ops/conv/dataflow.h"
#include "engine/ops/step.h"
#include "engine/tensor/dtype.h"

namespace voxserve {

// A rulebook that steps read. An inverse convolution or pool reads its partner's rulebook with the pairs swapped. A
// transposed convolution reads the rulebook of the convolution which it transposes, also with the pairs swapped.
struct ProgramRulebook {
  RulebookSpec spec;       // levels and geometry
  int swap_of = -1;        // index of the rulebook with the pairs to swap; -1: this rulebook is searched
  int first_conv = 0;      // the first convolution that reads it: its plan says how to search; -1: only pools read it
  bool is_pooled = false;  // a PoolStep reads it: a pool, or a crop, prune or union, which copy rows by a PoolStep

  bool is_swapped() const { return swap_of >= 0; }
};

// A part of the network: the geometry pass makes its levels and rulebooks, then the feature pass runs its steps.
struct ProgramSegment {
  std::vector<int> levels;         // parents before their children; level 0, the voxels, is in no segment's list
  std::vector<int> rulebooks;      // searched ones before those that swap them
  std::vector<int> sample_levels;  // levels on which steps read where each sample's rows begin
  std::vector<int> orders;         // of which steps cut groups
  int first_step = 0;
  int end_step = 0;  // the first step of the next segment
};

// A value that a layer computes, as the layer leaves it: after folded batch norms, its residual and its activation.
struct ProgramValue {
  int node = 0;       // index in Graph::nodes of the layer's result
  BufferSlice slice;  // where it lies
  int step = 0;       // the step that completes it. The slice holds the value until the next step runs, at least.
  // Which outputs need it, as in Step. Parts of a value that no output of a batch needs may be missing.
  bool is_for_all = false;
  bool is_for_scores = false;
  TensorSet for_tensors = 0;
};

struct Program {
  // Uploads the weights to the GPU that the program was compiled for, and sets weight_bytes to their size there.
  // Returns INVALID_ARGUMENT (BAD_MODEL) if a weight is beyond the range of its type; the message names the step.
  // Returns RESOURCE_EXHAUSTED if there is not enough memory.
  absl::Status Upload(WeightUploader& uploader);

  // Returns INVALID_ARGUMENT (BAD_MODEL) if a weight is beyond float32; the message names the step. Returns INTERNAL if
  // a step will fail on the CPU for every batch.
  absl::Status Check() const;
  // Returns the levels whose sites follow from scores: those of all segments but the first.
  std::vector<int> LevelsBehindPrunes() const;

  UniqueId id;  // identifies its steps and their weights, for caches
  int dimension = 3;
  VoxelizeOp voxelize;
  std::vector<CoordinateLevel> levels;     // parents before their children
  std::vector<ProgramRulebook> rulebooks;  // searched ones before those that swap them
  std::vector<SiteOrderSpec> orders;       // each once
  std::vector<ProgramConv> convs;
  std::vector<ProgramSegment> segments;  // one, or more where scores decide about sites
  std::vector<BufferSlice> scores;       // by level: the scores on its parent's sites that decide which stay, or none
  std::vector<int> key_levels;           // levels of which steps read the sites' keys
  PlanTable default_plans;               // from the plan that was given to the compiler
  std::vector<Buffer> buffers;
  // The bytes that the feature pass takes for each sample, whatever its number of points: for dense results and boxes,
  // and on a GPU for the steps that make them.
  int64_t sample_bytes = 0;
  std::vector<std::unique_ptr<Step>> steps;
  // CPU only: the floating-point values of all layers but decoders of boxes, in the layers' order.
  std::vector<ProgramValue> values;
  int first_head_step = 0;  // steps from here on are the head (labels, boxes, outputs), timed as Stage::kHead
  bool allow_tf32 = false;
  bool is_deterministic = false;  // on a GPU: a sample's result has the same bytes in every batch
  int num_classes = 0;
  bool has_labels = false;
  bool has_scores = false;
  bool has_boxes = false;
  bool has_velocities = false;        // boxes have velocities
  std::vector<TensorInfo> tensors;    // tensors that requests may ask for, by their TensorBit
  DType label_dtype = DType::kUint8;  // or kUint16
  int64_t weight_bytes = 0;           // size of the steps' weights
  std::string overflowing_step;       // the first step with weights that folding made infinite or NaN; "": none
};

}  // namespace voxserve
