#pragma once

// Makes maps without TorchSparse's optimizations (Tang et al., MLSys 2022, section 4.4). Figure 13's steps compare our
// own kernels with these. Only three dimensions; rows are in our order, so the results have the same bytes.
//
// Such an implementation reads sizes back between its stages. Here the caller passes the sizes, as if reading them took
// no time.
//
// The launchers keep the promises of kernels/core/cuda_stream.h.

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
  // The number of candidates (an input and a cell) that pass all checks; the convolution's map has as many pairs.
  int64_t num_kept = 0;
};
static_assert(std::is_trivially_copyable_v<PlainOutputCoordinatesParams>);

size_t PlainOutputCoordinatesWorkspaceBytes(const PlainOutputCoordinatesParams& params);

// Runs one kernel per stage, over every input and cell, with results in memory: adds the cell's offset, checks the
// stride, checks the boundary, makes keys. Then it compacts the keys that passed, sorts them by all bits and removes
// duplicates.
cudaError_t PlainOutputCoordinates(const PlainOutputCoordinatesParams& params, cudaStream_t stream);

// Uses one thread per output row, which looks up each cell by a key of its own. Does not read params.table.
cudaError_t PlainSearchNeighbours(const kernels::NeighbourSearchParams& params,
                                  const kernels::cuda::CoordinateTable& table, cudaStream_t stream);

}  // namespace voxserve::bench
