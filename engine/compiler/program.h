#pragma once

// A network ready to run: what the compiler makes of a Graph, and the executor runs for every batch.
//
// Two passes. The geometry pass makes voxels, coordinate levels and rulebooks from coordinates alone; the feature pass
// is the list of steps below, in order. A prune by score ends a segment: behind it both passes are made again, for the
// levels that features decided (prunes side by side share a segment). Batch norms are folded, epilogues fused, and
// concatenations written in place where that is possible, so a step is a kernel call and a buffer is real memory.
//
// Immutable after compilation (and Upload, for a GPU); shared by all threads of its device.

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

// A rulebook that steps walk, by its index. An inverse convolution or pool walks its partner's with the pairs swapped,
// a transposed convolution that of the convolution it transposes.
struct ProgramRulebook {
  RulebookSpec spec;   // levels and geometry
  int swap_of = -1;    // index of the rulebook whose pairs are swapped; -1: searched
  int first_conv = 0;  // the first convolution that asked for it: its plan says how it is searched; -1: only pools did
  bool is_pooled = false;  // a pool walks it, on a GPU as neighbours

  bool is_swapped() const { return swap_of >= 0; }
};

// A part of the network: its levels and rulebooks are made, then its steps run.
struct ProgramSegment {
  std::vector<int> levels;         // parents before their children; level 0, the voxels, stands in none
  std::vector<int> rulebooks;      // searched ones before those that swap them
  std::vector<int> sample_levels;  // levels whose steps ask where each sample's rows begin
  int first_step = 0;
  int end_step = 0;  // the next segment's first
};

// A convolution, by its index: the order in which they run. A plan has an entry for each.
struct ProgramConv {
  std::string node;  // of the graph
  int step = 0;
  int rulebook = 0;
  int32_t in_channels = 0;
  int32_t out_channels = 0;
  DType dtype = DType::kFloat32;  // of its products
  bool is_on_cuda = false;
  std::vector<ServedDataflow> served;  // by the device, as ServedDataflows has them

  // Null where the device does not serve it.
  const ServedDataflow* Find(Dataflow dataflow) const;
  bool Serves(const ConvPlan& plan) const {
    const ServedDataflow* const found = Find(plan.dataflow);
    return found != nullptr && found->Serves(plan);
  }
};

struct Program {
  // Brings the weights to the GPU that the program was compiled for; weight_bytes is what they take there.
  // INVALID_ARGUMENT (BAD_MODEL), naming the step, where a weight is beyond its type; RESOURCE_EXHAUSTED for memory.
  absl::Status Upload(WeightUploader& uploader);

  // INVALID_ARGUMENT (BAD_MODEL), naming the step, where a weight is beyond float32; INTERNAL where one will fail on
  // the CPU whatever the batch.
  absl::Status Check() const;

  UniqueId id;  // of its steps and their weights
  int dimension = 3;
  VoxelizeOp voxelize;
  std::vector<CoordinateLevel> levels;     // parents before their children
  std::vector<ProgramRulebook> rulebooks;  // searched ones before those that swap them
  std::vector<ProgramConv> convs;
  std::vector<ProgramSegment> segments;  // one, or more where scores decide about sites
  std::vector<BufferSlice> scores;       // by level: of its parent's sites, where they decide which stay; else none
  std::vector<int> key_levels;           // levels whose steps read their sites' keys
  PlanTable default_plans;               // of the plan that it was compiled with
  std::vector<Buffer> buffers;
  // That the feature pass takes for each sample, whatever its size: for dense results and boxes, and on a GPU for the
  // steps that make them.
  int64_t sample_bytes = 0;
  std::vector<std::unique_ptr<Step>> steps;
  int first_head_step = 0;  // steps from here on are the head, timed as Stage::kHead: labels, boxes and outputs
  bool allow_tf32 = false;
  bool is_deterministic = false;  // on a GPU: a sample's bytes do not depend on its batch
  int num_classes = 0;
  bool has_labels = false;
  bool has_scores = false;
  bool has_boxes = false;
  bool has_velocities = false;        // of boxes
  std::vector<TensorInfo> tensors;    // that requests may ask for, by their TensorBit
  DType label_dtype = DType::kUint8;  // or kUint16
  int64_t weight_bytes = 0;           // that the steps hold
  std::string overflowing_step;       // the first whose weights, batch norms folded in, are not finite; "": none
};

}  // namespace voxserve
