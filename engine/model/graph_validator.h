#pragma once

// ValidateGraph makes a Graph from a Model (model.proto) and its tensors, or reports everything that is wrong with
// them. The model loader calls it.
//
// It checks names, inputs, cycles, parameters, channels, coordinate levels, tensors and outputs. After a problem it
// continues as far as later checks make sense: for a node with a broken input it checks only the node's own parameters
// and tensors, so that one mistake is reported once.

#include <stop_token>

#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "engine/model/safetensors.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

// Limits, far above what networks need (some hundreds of nodes on some ten levels). They bound the time and the memory
// of a load of a hostile file. kMaxLevels and kMaxRulebooks (levels.h) are two more.
inline constexpr int kMaxNodes = 10'000;
inline constexpr int kMaxInputs = 100'000;  // of all nodes together

// Use the graph only if nothing was added to `problems`. It is then complete except for its two digests. If `tensors`
// have no data, the graph's weights have shapes but no values. Soon after `stop` is requested, returns a graph of no
// use, without a problem.
Graph ValidateGraph(const model::v1::Model& model, const StoredTensors& tensors, Problems* problems,
                    const std::stop_token& stop = {});

}  // namespace voxserve
