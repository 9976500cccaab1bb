#pragma once

// ConvBlock says how large a part of a sparse convolution one thread block (on the CPU, one thread) computes at a time,
// and by which instructions. It is part of a plan: the tuner chooses it for every convolution. Each dataflow's header
// says which blocks it has.

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels {

struct ConvBlock {
  int32_t rows = 0;     // output rows per block; 0: the dataflow's default replaces all fields
  int32_t columns = 0;  // output channels per block
  int32_t split_k = 0;  // number of parts of the summed channels; blocks sum the parts apart, then the sums are added
  bool uses_mma_sync = false;  // use the tensor core instructions of sm_80 even if the GPU has newer ones

  constexpr bool operator==(const ConvBlock&) const = default;
};
static_assert(std::is_trivially_copyable_v<ConvBlock>);

}  // namespace voxserve::kernels
