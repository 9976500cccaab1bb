#pragma once

// These functions compute the candidates from which OutputCoordinates (output_coordinates.h) makes its outputs on a
// GPU. A candidate is the output site of one input and one cell of the kernel, if the rule allows the site. Several
// candidates can be the same site. Only .cu files include this header.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <numeric>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/floor_division.h"
#include "kernels/coordinates/morton_key.h"
#include "kernels/coordinates/output_coordinates.h"
#include "kernels/coordinates/sample_bounds.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"

namespace voxserve::kernels::cuda {

// A rule on one axis.
struct CandidateAxis {
  int32_t stride;
  int32_t log2_stride;  // -1: the stride is no power of two
  int32_t dilation;
  int32_t padding;
  int32_t kernel_size;
  int32_t step;            // cells through which outputs reach the same input are this many cells apart
  int32_t num_candidates;  // the most candidates of an input
  int32_t site_step;       // distance from one candidate's site to the next candidate's site
  int64_t first;           // first site within the rule and the box; CandidateParams::bounds may raise it for a sample
  int64_t last;            // last site within the rule and the box

  // Division by a number that is only known at run time takes many instructions.
  template <typename Integer>
  __device__ bool IsMultipleOfStride(Integer value) const {
    return log2_stride < 0 ? value % stride == 0 : (value & (stride - 1)) == 0;
  }
  template <typename Integer>
  __device__ Integer FloorByStride(Integer value) const {
    return log2_stride < 0 ? FloorDivide<Integer>(value, stride) : value >> log2_stride;
  }
};

struct CandidateParams {
  const uint64_t* in_keys;
  int64_t in_capacity;
  const int64_t* num_in;
  const FieldBounds* bounds;  // [num_samples] bounds of the inputs, if a sample's minimum is the lower bound; else null
  bool are_quotients;         // each input has one candidate, floor(input / stride)
  bool are_transposed;        // candidates are stride * input + Delta; a candidate's number is its cell
  int32_t candidates_an_input;
  CandidateAxis axes[kMaxDimension];
  int32_t num_listed_cells;  // ConvGeometry's, if are_transposed; else 0
  int32_t listed_cells[kMaxListedCells];
  int32_t min_coordinate;  // the limits of a key's coordinates
  int32_t max_coordinate;
  int64_t* num_beyond_limits;
};

// The candidates of an input on one axis. Candidate `number` below `count` has the site first + number * step. It
// exists if that site is in [lowest, highest].
struct AxisSites {
  int64_t first;
  int32_t step;
  int32_t count;
  int64_t lowest;
  int64_t highest;

  __device__ int64_t Site(int32_t number) const { return first + int64_t{step} * number; }
  __device__ bool Has(int32_t number) const {
    return number < count && Site(number) >= lowest && Site(number) <= highest;
  }
};

template <int kDimension>
__device__ AxisSites AxisSitesOf(const CandidateParams& params, int axis, int32_t sample, int32_t coordinate) {
  using Integer = FieldInteger<kDimension>;
  const CandidateAxis& rule = params.axes[axis];
  AxisSites sites = {
      .first = 0, .step = rule.site_step, .count = rule.num_candidates, .lowest = rule.first, .highest = rule.last};
  if (params.are_quotients) {
    sites.first = rule.FloorByStride(static_cast<Integer>(coordinate));
    return sites;
  }
  if (params.are_transposed) {
    sites.first = int64_t{coordinate} * rule.stride - rule.padding;
    return sites;
  }
  int32_t cell = 0;  // the first cell that reaches the input; every rule.step-th cell after it reaches the input too
  const int32_t num_tries = min(rule.step, rule.kernel_size);
  Integer at = static_cast<Integer>(coordinate) + rule.padding;  // stride * the site that reads it through the cell
  while (cell < num_tries && !rule.IsMultipleOfStride(at)) {
    ++cell;
    at -= rule.dilation;
  }
  if (cell == num_tries) {
    sites.count = 0;
    return sites;
  }
  sites.first = rule.FloorByStride(at);
  if (cell + (rule.num_candidates - 1) * rule.step >= rule.kernel_size) --sites.count;
  if (params.bounds != nullptr) {
    const int64_t lowest =
        int64_t{params.bounds[sample].lowest[axis]} - static_cast<int64_t>(MortonKey<kDimension>::kBias);
    sites.lowest = max(rule.first, rule.FloorByStride(lowest + rule.stride - 1));
  }
  return sites;
}

// Finds candidate `number` of the input with this key, and sets its sample and sites (one coordinate per axis). Returns
// false if the candidate does not exist or is beyond a key's limits; in the latter case counts it in num_beyond_limits.
template <int kDimension>
__device__ bool FindCandidate(const CandidateParams& params, uint64_t key, int32_t number, int32_t& sample,
                              Axes& sites) {
  using Key = MortonKey<kDimension>;
  sample = Key::Sample(key);
  if (params.num_listed_cells > 0) number = params.listed_cells[number];
  bool exists = true;
  bool is_in_limits = true;
#pragma unroll
  for (int axis = kDimension - 1; axis >= 0; --axis) {
    const int32_t of_axis = params.axes[axis].num_candidates;
    int64_t site = 0;
    if (exists) {
      const AxisSites on_axis = AxisSitesOf<kDimension>(params, axis, sample, Key::Coordinate(key, axis));
      site = on_axis.Site(number % of_axis);
      exists = on_axis.Has(number % of_axis);
    }
    is_in_limits = is_in_limits && site >= params.min_coordinate && site <= params.max_coordinate;
    sites[axis] = static_cast<int32_t>(site);
    number /= of_axis;
  }
  if (exists && !is_in_limits) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&params.num_beyond_limits[sample]), 1ull);
  }
  return exists && is_in_limits;
}

// Returns the description of all candidates. A candidate outside OutputExtent's box does not exist. params.num_in must
// be above 0. bounds: CandidateParams::bounds.
inline CandidateParams CandidatesOf(const OutputCoordinatesParams& params, const FieldBounds* bounds) {
  const ConvGeometry& geometry = params.geometry;
  const CoordinateKey layout(geometry.dimension);
  CandidateParams candidates{.in_keys = params.in_keys,
                             .in_capacity = params.num_in,
                             .num_in = params.device_num_in,
                             .bounds = bounds,
                             .are_quotients = OutputsAreQuotients(params),
                             .are_transposed = MakesFinerSites(params.rule),
                             .candidates_an_input = static_cast<int32_t>(NumOutputCandidates(params) / params.num_in),
                             .axes = {},
                             .num_listed_cells = 0,
                             .listed_cells = {},
                             .min_coordinate = layout.min_coordinate(),
                             .max_coordinate = layout.max_coordinate(),
                             .num_beyond_limits = params.num_beyond_limits};
  if (candidates.are_transposed) {
    candidates.num_listed_cells = geometry.num_listed_cells;
    std::copy_n(geometry.listed_cells.begin(), geometry.num_listed_cells, candidates.listed_cells);
  }
  const Axes extent = OutputExtent(params);
  const bool has_box = HasShape(params.rule) || extent[0] > 0;
  for (int axis = 0; axis < geometry.dimension; ++axis) {
    const int32_t stride = geometry.stride[axis];
    const int32_t dilation = geometry.dilation[axis];
    const int32_t divisor = std::gcd(stride, dilation);
    CandidateAxis& rule = candidates.axes[axis];
    rule = {.stride = stride,
            .log2_stride = std::has_single_bit(static_cast<uint32_t>(stride))
                               ? std::countr_zero(static_cast<uint32_t>(stride))
                               : -1,
            .dilation = dilation,
            .padding = geometry.padding[axis],
            .kernel_size = geometry.kernel_size[axis],
            .step = stride / divisor,
            .num_candidates = 1,
            .site_step = 0,
            .first = has_box ? 0 : std::numeric_limits<int64_t>::min(),
            .last = has_box ? int64_t{extent[axis]} - 1 : std::numeric_limits<int64_t>::max()};
    if (candidates.are_quotients) continue;
    rule.num_candidates =
        static_cast<int32_t>(candidates.are_transposed ? geometry.kernel_size[axis] : CandidatesAnAxis(geometry, axis));
    rule.site_step = candidates.are_transposed ? dilation : -dilation / divisor;
    if (params.rule != CoordinateRule::kExpand) continue;
    if (params.has_lower) {
      rule.first = std::max(rule.first, FloorDivide<int64_t>(int64_t{params.lower[axis]} + stride - 1, stride));
    }
    const int64_t last =
        params.has_upper ? FloorDivide<int64_t>(params.upper[axis], stride) : std::numeric_limits<int32_t>::max();
    rule.last = std::min(rule.last, last);
  }
  return candidates;
}

}  // namespace voxserve::kernels::cuda
