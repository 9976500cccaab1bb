#pragma once

// Runs the CPU's OutputCoordinates, the kernel that finds the output sites of a convolution. Also defines
// PairSites, in which tests compare rulebooks.

#include <cstdint>
#include <tuple>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/output_coordinates.h"

namespace voxserve::kernels::fixtures {

// Returns the keys of the output sites. The caller sets the inputs in `params`. The outputs and the workspace have
// buffers of the sizes that the kernel's own functions give. The buffers are filled with invalid values first, so that
// a value that the kernel fails to write is visible. num_beyond_limits: gets the kernel's output of this name, [B].
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

// A pair of a rulebook as (kernel cell, sample, input coordinate, output coordinate). In this form a pair does not
// depend on the order of rows.
using PairSites = std::tuple<int32_t, int32_t, Axes, Axes>;

}  // namespace voxserve::kernels::fixtures
