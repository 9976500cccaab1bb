#pragma once

// Model + tensors -> Graph, or everything that is wrong with them.
//
// Checks names, inputs, cycles, parameters, channels, coordinate levels, tensors and outputs, and goes on after a
// problem as far as what follows still means something: a node whose input is broken is checked for its own parameters
// alone, so that one mistake is reported once.

#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "engine/model/safetensors.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

// The graph has meaning only where nothing was added to `problems`. It is complete then, but for its digest.
Graph ValidateGraph(const model::v1::Model& model, const StoredTensors& tensors, Problems* problems);

}  // namespace voxserve
