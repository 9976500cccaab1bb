#pragma once

// The compiler turns a Graph into a Program, in this order:
//  1. It fuses nodes into layers. A convolution, a linear layer or another kernel with an epilogue absorbs the batch
//     norm, addition and activation behind it, as long as no other node reads the values in between. Batch norms are
//     folded into weights and bias. The input of an addition that is computed last absorbs the addition, and the other
//     input becomes its residual. Convolutions of images that read the same input are merged (layers.h, operators.h,
//     conv2d_merging.h).
//  2. It assigns buffers, one per value (buffer_layout.h). Inputs of a concatenation are written in place where that is
//     possible, and copied otherwise. A node that others name only for its sites has neither buffer nor step.
//  3. It makes steps (operators.h): the layers in the graph's order, segment by segment (segments.h), then the head,
//     then the outputs (step_emitter.h).
//  4. It brings weights into the order that the device reads.
// The loader has found levels and rulebooks before, when it checked the graph (levels.h).

#include "engine/compiler/plan.h"
#include "engine/compiler/program.h"
#include "engine/model/graph.h"

namespace voxserve {

// CompileTarget describes the device that a program is made for, and how it computes.
struct CompileTarget {
  int bytes_per_label = 1;        // 1 or 2, so that all labels fit (ModelConfig::bytes_per_label)
  bool on_cuda = false;           // else the CPU, where dtype is float32
  DType dtype = DType::kFloat32;  // type of features and weights; outputs are always float32
  bool is_deterministic = false;  // as in Program
  bool merges_conv2ds = false;    // merges convolutions of images; helps a GPU, while one alone already fills a CPU
  bool allow_tf32 = false;        // products of float32 may round their factors to TF32
};

// Compiles a graph. A program for a GPU can run after its weights were uploaded (Program::Upload).
Program Compile(const Graph& graph, const Plan& plan, const CompileTarget& target);

}  // namespace voxserve
