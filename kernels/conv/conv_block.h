#pragma once

// The part of a convolution that one block computes: a choice that a tuner makes for every convolution.

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

struct ConvBlock {
  int32_t rows = 0;       // output rows of a block; 0: the dataflow's default, of everything here
  int32_t columns = 0;    // output channels of a block
  int32_t split_k = 0;    // parts of an offset's channels: blocks make a sum of each, which are then added up
  bool by_warps = false;  // tensor cores by the instructions of sm_80, where the GPU has newer ones too

  constexpr bool operator==(const ConvBlock&) const = default;
};
static_assert(std::is_trivially_copyable_v<ConvBlock>);

}  // namespace voxserve::kernels
