#pragma once

// This file holds the compiler's knowledge of single operators. Each function uses an exhaustive std::visit in
// operators.cc, so that the build fails where a new operator of GraphOp is not handled:
//  - reading: which of its inputs an operator reads,
//  - fusion: which layer an operator begins, and whether an operator can be fused into the layer before it,
//  - emission: which steps a layer becomes.

#include <cstddef>

#include "engine/compiler/layers.h"
#include "engine/model/graph.h"

namespace voxserve {

class StepEmitter;

// Returns the number of inputs from which the node reads rows. These inputs come first. The inputs after them only
// define sites or positions: the node voxelize, or a tensor whose sites are the positions.
size_t NumInputsRead(const GraphNode& node);

// Returns the layer that the node begins. The layers of all inputs exist already.
Layer BeginLayer(int node, const Layers& layers);

// Adds the node to the end of the layer. The node must be the only reader of the layer's value. Returns false and
// changes nothing where the layer's kernel cannot compute the node.
bool AbsorbNode(int node, const Layers& layers, Layer& layer);

// Appends the layer's steps to the program, and counts their weights. Also adds the rulebooks and convolutions that the
// steps use, and the levels of which they read the sites' keys (Program::key_levels). Call it for the layers in the
// order in which they run.
void EmitLayer(int layer, StepEmitter& emitter);

}  // namespace voxserve
