#pragma once

// Everything that the compiler knows of single operators. Each of these functions asks an exhaustive std::visit of
// operators.cc, so that an operator of GraphOp without an answer does not compile:
//  - reading: which of its inputs an operator reads,
//  - fusion: how the layer that it begins starts, and whether the layer before it can absorb it,
//  - emission: which steps it becomes.

#include <cstddef>

#include "engine/compiler/layers.h"
#include "engine/model/graph.h"

namespace voxserve {

class StepEmitter;

// Returns the number of inputs whose rows the node reads. The other inputs, which follow them, say where: the voxelize,
// or a node for its sites.
size_t NumInputsRead(const GraphNode& node);

// Returns the layer that the node begins. The layers of all inputs exist already.
Layer BeginLayer(int node, const Layers& layers);

// Adds the node, which alone reads the layer's value, to the end of the layer. False, and nothing is changed, where the
// layer's kernel has no room for it.
bool AbsorbNode(int node, const Layers& layers, Layer& layer);

// Appends the layer's steps to the program, with the rulebooks, convolutions and key levels that they use, and counts
// their weights. Called in the order in which steps run.
void EmitLayer(int layer, StepEmitter& emitter);

}  // namespace voxserve
