#pragma once

// The compiler turns a Graph into a Program, in this order:
//  1. It fuses nodes into layers. A convolution, a linear layer or another kernel with an epilogue absorbs the batch
//     norm, addition and activation after it, as long as no other node reads the values in between. Batch norms are
//     folded into weights and bias, or a pool's scale. The layer that computes the later input of an addition absorbs
//     the addition, and the earlier input becomes the layer's residual. Products that read the same input are merged
//     (on a GPU). A sparse convolution computes the shortcut of its residual block too, in 16 bits on a GPU and in 8
//     bits. In 16 bits on a GPU, a linear layer computes the rotary of its result, and on Hopper one kernel computes a
//     transformer block's MLP. A layer norm computes a layer norm of its result too, and in 16 bits on a GPU so
//     does a sparse convolution (layers.h, operators.h, product_merging.h, layer_fusion.h).
//  2. It assigns buffers, one per value (buffer_layout.h). Inputs of a concatenation are written in place where that is
//     possible, and copied otherwise. A node has neither buffer nor step if other nodes name it only to use its sites,
//     and none reads its values.
//  3. It makes steps (operators.h): the layers in the graph's order, segment by segment (segments.h), then the head,
//     then the outputs (step_emitter.h).
//  4. It brings the weights into the order in which the device's kernels read them.
//
// The loader has already found the graph's levels and rulebooks, when it checked the graph (engine/model/levels.h).
// Compile returns no errors, since the loader has checked the graph. Any thread may call it.

#include <stop_token>
#include <string>
#include <vector>

#include "engine/compiler/plan.h"
#include "engine/compiler/program.h"
#include "engine/model/graph.h"

namespace voxserve {

// CompileTarget describes the device that a program is made for, and how it computes.
struct CompileTarget {
  int bytes_per_label = 1;        // 1 or 2, so that all labels fit (ModelConfig::bytes_per_label)
  bool on_cuda = false;           // false: the device is the CPU, where dtype must be float32
  DType dtype = DType::kFloat32;  // type of features and weights; outputs are always float32
  bool is_deterministic = false;  // on a GPU: a sample's result has the same bytes in every batch
  // Merges convolutions of images (product_merging.h). This helps a GPU, which one small convolution leaves mostly
  // idle. It does not help a CPU, since one convolution already keeps all cores busy.
  bool merges_products = false;
  // Computes the MLP of a transformer block in one kernel (layer_fusion.h). The GPU must have the kernel for this
  // dtype: kernels::cuda::SupportsMlp.
  bool fuses_mlps = false;
  // On a GPU in 16 bits: linear layers rotate the queries and keys of attention (layer_fusion.h). It needs
  // LinearStep::CanRotate.
  bool rotates_products = false;
  // On a GPU in 16 bits: convolutions of images leave out boxes that do not depend on sites
  // (kernels/image/sites/active_boxes.h). It needs Conv2dStep::CanLeaveOutBoxes.
  bool leaves_out_boxes = false;
  // Convolutions and linear layers multiply in 8 bits where their inputs have scales (int8_types.h). On a GPU dtype is
  // kFloat16 then, and the GPU must have products in 8 bits. On the CPU products are not merged. float_nodes: the first
  // nodes of layers that do not multiply in 8 bits.
  bool is_int8 = false;
  std::vector<std::string> float_nodes = {};
  // In 8 bits on a GPU: so do convolutions of images of several cells. It needs kernels::cuda::SupportsInt8Im2col.
  bool has_int8_images = false;
  bool allow_tf32 = false;    // matrix products of float32 may round their factors to TF32
  std::stop_token stop = {};  // once it is requested, Compile returns at the next layer, with a program of no use
};

// Compiles a graph. A program for a GPU can run only after its weights have been uploaded (Program::Upload).
Program Compile(const Graph& graph, const Plan& plan, const CompileTarget& target);

}  // namespace voxserve
