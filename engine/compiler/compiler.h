#pragma once

// Graph -> Program. It does, in this order:
//  1. Fuses: a convolution, a linear layer or a step of its own absorbs the batch norm, addition and activation that
//     follow it, as long as nothing else reads what lies between. Batch norms are folded into weights and bias; of an
//     addition the side that is computed last absorbs it, and the other becomes its residual. Convolutions of images
//     that read alike become one (layers.h, operators.h, conv2d_merging.h).
//  2. Lays out buffers (buffer_layout.h): one per value; what is concatenated is written in place where that is
//     possible, and copied otherwise. Layers whose sites alone are read have neither buffer nor step.
//  3. Makes steps (operators.h): layers as the graph has them, segment by segment (segments.h), then the head, then the
//     outputs (step_emitter.h).
//  4. Prepares weights in the order that each step's dataflow reads. A CPU's are packed for the dataflow of the plan
//     that is given here, and no later plan changes it; on a GPU all dataflows read the same order.
// Levels and rulebooks were found by structure when the graph was loaded (levels.h).

#include "engine/compiler/plan.h"
#include "engine/compiler/program.h"
#include "engine/model/graph.h"

namespace voxserve {

// The device that a program is made for, and how it is to compute.
struct CompileTarget {
  int bytes_per_label = 1;        // 1 or 2, what a label and the ignore label fit (ModelConfig::bytes_per_label)
  bool on_cuda = false;           // else the CPU, where dtype is float32
  DType dtype = DType::kFloat32;  // of features and weights; what the network returns is float32 all the same
  bool is_deterministic = false;  // Program's
  bool merges_conv2ds = false;    // of images that read alike: a GPU gains by it, a CPU is full with one
  bool allow_tf32 = false;        // products of float32 may round their factors to TF32
};

// A program for a GPU runs there once its steps' weights are uploaded (Program::Upload).
Program Compile(const Graph& graph, const Plan& plan, const CompileTarget& target);

}  // namespace voxserve
