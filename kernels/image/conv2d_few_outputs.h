#pragma once

// What kernels/image/conv2d.h does on a CPU where groups have few outputs each, as detection heads end in: fewer than
// oneDNN's vectors hold.

#include <cstdint>
#include <vector>

#include "kernels/core/thread_pool.h"
#include "kernels/image/conv2d.h"

namespace voxserve::kernels::cpu {

// Whether the following compute it.
bool HasFewOutputs(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels);

// As PackConv2dWeights and Conv2d.
std::vector<float> PackFewOutputsWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                         const float* weights);
void FewOutputsConv2d(const Conv2dParams& params, ThreadPool& pool);

}  // namespace voxserve::kernels::cpu
