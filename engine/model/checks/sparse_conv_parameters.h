#pragma once

// ReadSparseConv checks the parameters of a convolution that do not depend on its input or tensors: lists have one
// entry per axis, and numbers are in range. It fills in defaults and makes padding canonical.

#include <optional>

#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

// Returns an op with its kind and, except for an inverse convolution, its sites and stored_cells. Channels, partner and
// rulebook are not set. Returns nullopt if it has reported a problem at `at`.
std::optional<SparseConvOp> ReadSparseConv(const model::v1::SparseConv& proto, int dimension, const ProblemsAt& at);

}  // namespace voxserve
