#pragma once

// Runs the CPU's coordinate kernels with buffers of their own. The kernels' own functions give the sizes of the
// buffers. Invalid values fill the buffers first, so that values a kernel fails to write are visible.

#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/output_coordinates.h"

namespace voxserve::kernels::testing {

inline std::vector<uint64_t> RunOutputCoordinates(OutputCoordinatesParams params, ThreadPool& pool,
                                                  std::vector<int64_t>* num_beyond_limits = nullptr) {
  int64_t num_out = -1;
  params.num_out = &num_out;
  std::vector<int64_t> own;
  std::vector<int64_t>& beyond = num_beyond_limits != nullptr ? *num_beyond_limits : own;
  beyond.assign(static_cast<size_t>(params.num_samples), -1);
  params.num_beyond_limits = beyond.data();
  params.out_capacity = OutputCoordinatesCapacity(params);
  std::vector<uint64_t> keys(static_cast<size_t>(params.out_capacity), 77);
  params.out_keys = keys.data();
  std::vector<char> workspace(OutputCoordinatesWorkspaceBytes(params), 'x');
  params.workspace = workspace.data();
  cpu::OutputCoordinates(params, pool);
  keys.resize(static_cast<size_t>(num_out));
  return keys;
}

// A pair of a rulebook as (kernel cell, sample, input coordinate, output coordinate). It does not depend on the numbers
// of rows.
using PairSites = std::tuple<int32_t, int32_t, Axes, Axes>;

}  // namespace voxserve::kernels::testing
