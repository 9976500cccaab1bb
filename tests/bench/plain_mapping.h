#pragma once

// Mapping as it is without what TorchSparse does about it (Tang et al., MLSys 2022, section 4.4): what our own kernels
// are compared with in Figure 13's steps. Three dimensions, rows as ours: the results are the same bytes.
//
// Sizes that such an implementation reads back between its stages are given to it here, as if that took no time.
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
  // kPadded; num_in is the number of keys, device_num_in is ignored, num_beyond_limits stays untouched. out_capacity
  // holds num_kept. workspace: PlainOutputCoordinatesWorkspaceBytes.
  kernels::OutputCoordinatesParams definition;
  // Candidates (an input and a cell) that pass all checks: as many as the convolution's map has pairs.
  int64_t num_kept = 0;
};
static_assert(std::is_trivially_copyable_v<PlainOutputCoordinatesParams>);

size_t PlainOutputCoordinatesWorkspaceBytes(const PlainOutputCoordinatesParams& params);

// A kernel a stage, each through memory, over every input and cell: the cell's offset is added, the stride's modular
// check, the boundary check, keys; then what passed is compacted, sorted by all bits and made unique.
cudaError_t PlainOutputCoordinates(const PlainOutputCoordinatesParams& params, cudaStream_t stream);

// A thread an output row: one loop over the cells, each looked up by its own key. params.table is not read.
cudaError_t PlainSearchNeighbours(const kernels::NeighbourSearchParams& params,
                                  const kernels::cuda::CoordinateTable& table, cudaStream_t stream);

}  // namespace voxserve::bench
