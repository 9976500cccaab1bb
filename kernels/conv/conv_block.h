#pragma once

// The part of a convolution that one thread block computes. The tuner chooses it for every convolution.

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

struct ConvBlock {
  int32_t rows = 0;       // output rows per block; 0: the dataflow's default for all fields here
  int32_t columns = 0;    // output channels per block
  int32_t split_k = 0;    // parts of the summed channels: different blocks sum the parts, which are then added
  bool by_warps = false;  // use the tensor core instructions of sm_80 even if the GPU has newer ones

  constexpr bool operator==(const ConvBlock&) const = default;
};
static_assert(std::is_trivially_copyable_v<ConvBlock>);

}  // namespace voxserve::kernels
