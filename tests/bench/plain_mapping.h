#pragma once

// Makes kernel maps on a GPU without TorchSparse's optimizations (Tang et al., MLSys 2022, section 4.4). A kernel map
// says which input rows each output row of a convolution reads. mapping_cuda_bench compares our own kernels with these,
// step by step as in the paper's Figure 13. The functions handle three dimensions only. Rows are in the order of our
// kernels, so the results have the same bytes.
//
// An implementation without the optimizations copies sizes to the host between its stages. Here the caller passes the
// sizes, so these copies take no time.
//
// The launchers follow the contract of launchers in kernels/core/cuda_stream.h: they launch on `stream`, never wait and
// never allocate.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/coordinates/coordinate_table.h"
#include "kernels/coordinates/neighbour_search.h"
#include "kernels/coordinates/output_coordinates.h"
#include "kernels/core/cuda_stream.h"

namespace voxserve::bench {

struct PlainOutputCoordinatesParams {
  // The rule is kPadded. num_in is the number of keys; device_num_in is ignored and num_beyond_limits is not written.
  // out_capacity is at least num_kept. workspace has PlainOutputCoordinatesWorkspaceBytes.
  kernels::OutputCoordinatesParams definition;
  // The number of candidates (pairs of an input site and a kernel cell) that pass all checks. It equals the number of
  // pairs of the convolution's kernel map.
  int64_t num_kept = 0;
};
static_assert(std::is_trivially_copyable_v<PlainOutputCoordinatesParams>);

size_t PlainOutputCoordinatesWorkspaceBytes(const PlainOutputCoordinatesParams& params);

// Finds the output sites of a convolution. Runs one kernel per stage over every pair of an input site and a cell: it
// adds the cell's offset, checks the stride, checks the boundary, and makes keys. Every stage writes its results to
// memory. Then it compacts the keys that passed, sorts them by all bits and removes duplicates.
cudaError_t PlainOutputCoordinates(const PlainOutputCoordinatesParams& params, cudaStream_t stream);

// Finds the input row of each output row and cell. One thread per output row looks up the key of each cell in `table`.
// Does not read params.table.
cudaError_t PlainSearchNeighbours(const kernels::NeighbourSearchParams& params,
                                  const kernels::cuda::CoordinateTable& table, cudaStream_t stream);

}  // namespace voxserve::bench
