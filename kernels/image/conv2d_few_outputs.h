#pragma once

// FewOutputsConv2d computes 2D convolutions (kernels/image/conv2d.h) of several groups with few output channels each,
// like the last layers of detection heads, on a CPU. It replaces oneDNN, which is slow if a group's output channels do
// not fill whole vectors.

#include <cstdint>
#include <vector>

#include "kernels/core/thread_pool.h"
#include "kernels/image/conv2d.h"

namespace voxserve::kernels::cpu {

// Returns true if the functions below support the convolution and are expected to be faster than oneDNN. Groups then
// have at most 16 output channels, in a number that is no multiple of 8.
bool HasFewOutputs(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels);

// These functions replace cpu::PackConv2dWeights and cpu::Conv2d if HasFewOutputs is true.
std::vector<float> PackFewOutputsWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                         const float* weights);
void FewOutputsConv2d(const Conv2dParams& params, ThreadPool& pool);

}  // namespace voxserve::kernels::cpu
