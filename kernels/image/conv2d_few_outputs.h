#pragma once

// 2D convolutions on a CPU whose groups have few outputs each, like the last layers of detection heads: fewer outputs
// than one of oneDNN's vectors holds. kernels/image/conv2d.h describes the operation.

#include <cstdint>
#include <vector>

#include "kernels/core/thread_pool.h"
#include "kernels/image/conv2d.h"

namespace voxserve::kernels::cpu {

// Returns true if the functions below support the convolution.
bool HasFewOutputs(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels);

// These functions correspond to PackConv2dWeights and Conv2d.
std::vector<float> PackFewOutputsWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                         const float* weights);
void FewOutputsConv2d(const Conv2dParams& params, ThreadPool& pool);

}  // namespace voxserve::kernels::cpu
