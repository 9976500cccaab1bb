#pragma once

// Runs the coordinate kernels with buffers of their own, for tests: memory is sized by the kernels' own functions, and
// filled with rubbish first, so that what a kernel forgets to write shows.

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/coordinate_key.h"
#include "kernels/output_coordinates.h"
#include "kernels/rulebook_search.h"
#include "kernels/voxelize.h"

namespace voxserve::kernels::testing {

// Everything that Voxelize makes, cut to size; params() may be given on to LimitVoxels, which works on `buffers`.
struct VoxelizeBuffers {
  std::vector<uint64_t> keys;
  std::vector<int32_t> point_to_voxel;
  std::vector<int32_t> sorted_points;
  std::vector<int64_t> voxel_begin;
  std::vector<int64_t> sample_begin;
  std::vector<int64_t> num_invalid;
  std::vector<int64_t> num_out_of_range;
  std::vector<Axes> sample_origin;
  std::vector<char> workspace;

  // Points params' outputs here. The inputs must be set.
  void Attach(VoxelizeParams& params) {
    const auto n = static_cast<size_t>(params.num_points);
    const auto b = static_cast<size_t>(params.num_samples);
    keys.assign(n, 77);
    point_to_voxel.assign(n, 77);
    sorted_points.assign(n, 77);
    voxel_begin.assign(n + 1, 77);
    sample_begin.assign(b + 1, 77);
    num_invalid.assign(b, 77);
    num_out_of_range.assign(b, 77);
    sample_origin.assign(b, {77, 77, 77, 77});
    workspace.assign(VoxelizeWorkspaceBytes(params), 'x');
    params.keys = keys.data();
    params.point_to_voxel = point_to_voxel.data();
    params.sorted_points = sorted_points.data();
    params.voxel_begin = voxel_begin.data();
    params.sample_begin = sample_begin.data();
    params.num_invalid = num_invalid.data();
    params.num_out_of_range = num_out_of_range.data();
    params.sample_origin = sample_origin.data();
    params.workspace = workspace.data();
  }

  // Forgets what lies past the counts.
  void CutToSize() {
    const auto num_voxels = static_cast<size_t>(sample_begin.back());
    keys.resize(num_voxels);
    voxel_begin.resize(num_voxels + 1);
    sorted_points.resize(static_cast<size_t>(voxel_begin.back()));
  }
};

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

// (cell, sample, input coordinate, output coordinate): what a pair says, whatever the rows.
using PairSites = std::tuple<int32_t, int32_t, Axes, Axes>;

inline std::vector<PairSites> SitesOf(const RulebookView& rulebook, const std::vector<uint64_t>& in_keys,
                                      const std::vector<uint64_t>& out_keys, int32_t dimension) {
  const CoordinateKey layout(dimension);
  std::vector<PairSites> sites;
  for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
    for (int64_t pair = rulebook.offset_begin[k]; pair < rulebook.offset_begin[k + 1]; ++pair) {
      const uint64_t in = in_keys.at(static_cast<size_t>(rulebook.in_rows[pair]));
      const uint64_t out = out_keys.at(static_cast<size_t>(rulebook.out_rows[pair]));
      // Samples never mix; -1 would stand in no expected pair.
      const int32_t sample = layout.Sample(in) == layout.Sample(out) ? layout.Sample(in) : -1;
      sites.emplace_back(k, sample, layout.Unpack(in), layout.Unpack(out));
    }
  }
  return sites;
}

// What rulebook.h promises beyond the pairs: their order, and tile_begin. Empty, or what is wrong.
inline std::string RulebookFlaw(const RulebookView& view) {
  for (int32_t k = 0; k < view.num_offsets; ++k) {
    for (int64_t pair = view.offset_begin[k] + 1; pair < view.offset_begin[k + 1]; ++pair) {
      if (view.out_rows[pair] <= view.out_rows[pair - 1]) return "output rows of a cell do not ascend";
      if (view.in_rows[pair] <= view.in_rows[pair - 1]) return "input rows of a cell do not ascend";
    }
    for (int64_t tile = 0; tile <= view.num_tiles(); ++tile) {
      int64_t expected = view.offset_begin[k];
      while (expected < view.offset_begin[k + 1] && view.out_rows[expected] < tile * kRulebookTileRows) ++expected;
      if (view.tile_begin[tile * view.num_offsets + k] != expected) return "tile_begin is wrong";
    }
  }
  return "";
}

}  // namespace voxserve::kernels::testing
