#pragma once

// Map search on the GPU: for every output row and every cell of the kernel, the input row that it reads.
//
// Output o reads input i through cell k where in[i] = stride * out[o] + Delta(k). A thread takes one output row and a
// few cells: rows are in Morton order, so a warp's lookups are near each other. Where input and output sites are the
// same and the geometry is symmetric the centre is the identity, the first half of the cells is searched, and what it
// finds is written to both halves (TorchSparse, Tang et al., MLSys 2022, section 4.4).

#include <cstdint>
#include <type_traits>

#include "kernels/conv_geometry.h"
#include "kernels/coordinate_table.h"
#include "kernels/cuda_stream.h"

namespace voxserve::kernels {

struct NeighbourSearchParams {
  ConvGeometry geometry;        // |Delta| <= kCoordinateMargin
  cuda::CoordinateTable table;  // over the input keys
  int32_t dimension = 3;
  const uint64_t* out_keys = nullptr;  // [out_capacity] MortonKeys
  int64_t out_capacity = 0;            // below 2^31
  const int64_t* num_out = nullptr;
  bool same_sites = false;  // out_keys are the table's keys: a submanifold convolution

  // [K, out_capacity] input row, or -1. Of rows past num_out nothing is promised.
  int32_t* neighbours = nullptr;
};
static_assert(std::is_trivially_copyable_v<NeighbourSearchParams>);

namespace cuda {

cudaError_t SearchNeighbours(const NeighbourSearchParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
