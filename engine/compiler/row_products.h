#pragma once

// A row product is a layer that multiplies every row of its input by one matrix: a linear layer, or a sparse
// convolution whose kernel is a single cell and maps every site to itself.

#include <cstdint>
#include <vector>

#include "engine/compiler/layers.h"

namespace voxserve {

bool IsRowProduct(const Layers& layers, const Layer& layer);

// Returns weights of [..., out channels] times the layer's scale, which holds the folded batch norms.
std::vector<float> Scaled(std::vector<float> weights, const Layer& layer);

// Returns [out channels, in channels] as [in channels, out channels].
std::vector<float> Transposed(const std::vector<float>& weights, int32_t num_out);

// Returns the matrix of a row product, [in channels, out channels], with batch norms folded in.
std::vector<float> RowProductWeights(const Layers& layers, const Layer& layer);

}  // namespace voxserve
