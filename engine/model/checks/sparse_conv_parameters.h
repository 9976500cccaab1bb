#pragma once

// The parameters of a convolution, as far as they can be checked without knowing its input or its tensors: lists have
// one entry per axis, numbers are in range, defaults are filled in, padding is canonical.

#include <optional>

#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

// Returns the kind and, but for an inverse, the sites; not the channels, the partner or the rulebook. Empty where `at`
// has reported a problem for the node.
std::optional<SparseConvOp> ReadSparseConv(const model::v1::SparseConv& proto, int dimension, const ProblemsAt& at);

}  // namespace voxserve
