#pragma once

// Computes sparse convolutions and pools by their definitions. Tests compare the engine's results with these. A sparse
// tensor is a std::map from each site (the integer coordinate of a row) to its row. The functions loop over all sites
// and all cells of the kernel, and sum in double. They handle one sample at a time, without the levels, rulebooks and
// batches of the engine.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "kernels/rows/pool.h"

namespace voxserve {

using Place = std::array<int32_t, 4>;               // a site, or one number per axis; axes past the dimension are 0
using Rows = std::map<Place, std::vector<double>>;  // rows of a tensor by site

// A convolution whose kernel cell k connects each coarse site with the fine site stride * coarse + deltas[k]. Coarse
// sites are the outputs, or the inputs of a transposed convolution. The deltas are in the order of the weights.
struct ReferenceConv {
  int dimension = 3;
  Place stride = {1, 1, 1, 1};
  std::vector<Place> deltas;
  int groups = 1;
  int out_channels = 0;
  std::vector<float> weight;  // [K, in channels / groups, out channels]
  // If set, the node is a pool: it has no weight and reduces the rows that a site reads.
  std::optional<kernels::PoolReduce> reduce = std::nullopt;
};

// Returns the deltas of all cells of a box. The last axis varies fastest.
inline std::vector<Place> BoxDeltas(int dimension, const Place& kernel_size, const Place& dilation,
                                    const Place& padding) {
  std::vector<Place> deltas = {{0, 0, 0, 0}};
  for (size_t axis = 0; axis < static_cast<size_t>(dimension); ++axis) {
    std::vector<Place> longer;
    for (const Place& delta : deltas) {
      for (int32_t cell = 0; cell < kernel_size[axis]; ++cell) {
        longer.push_back(delta);
        longer.back()[axis] = dilation[axis] * cell - padding[axis];
      }
    }
    deltas = longer;
  }
  return deltas;
}

// Returns the padding of a centred kernel. On an axis of even size, the kernel begins at the site.
inline Place CentredPadding(const Place& kernel_size, const Place& dilation) {
  Place padding = {0, 0, 0, 0};
  for (size_t axis = 0; axis < 4; ++axis) {
    if (kernel_size[axis] % 2 == 1) padding[axis] = dilation[axis] * (kernel_size[axis] / 2);
  }
  return padding;
}

inline Place FineSite(const ReferenceConv& conv, const Place& coarse, const Place& delta) {
  Place fine = {0, 0, 0, 0};
  for (size_t axis = 0; axis < static_cast<size_t>(conv.dimension); ++axis) {
    fine[axis] = conv.stride[axis] * coarse[axis] + delta[axis];
  }
  return fine;
}

// Returns the coarse site from which FineSite gives `fine`, or nullopt if there is none: the division by the stride
// leaves a remainder.
inline std::optional<Place> CoarseSite(const ReferenceConv& conv, const Place& fine, const Place& delta) {
  Place coarse = {0, 0, 0, 0};
  for (size_t axis = 0; axis < static_cast<size_t>(conv.dimension); ++axis) {
    const int32_t distance = fine[axis] - delta[axis];
    if (distance % conv.stride[axis] != 0) return std::nullopt;
    coarse[axis] = distance / conv.stride[axis];
  }
  return coarse;
}

inline bool IsWithin(const Place& site, const Place& shape, int dimension) {
  for (size_t axis = 0; axis < static_cast<size_t>(dimension); ++axis) {
    if (site[axis] < 0 || site[axis] >= shape[axis]) return false;
  }
  return true;
}

inline std::set<Place> SitesOf(const Rows& rows) {
  std::set<Place> sites;
  for (const auto& [site, row] : rows) sites.insert(site);
  return sites;
}

// Returns the output sites by MinkowskiEngine's rule: floor(input site / stride).
inline std::set<Place> FloorSites(const ReferenceConv& conv, const Rows& in) {
  std::set<Place> sites;
  for (const auto& [site, row] : in) {
    Place out = {0, 0, 0, 0};
    for (size_t axis = 0; axis < static_cast<size_t>(conv.dimension); ++axis) {
      const int32_t stride = conv.stride[axis];
      out[axis] = (site[axis] - ((site[axis] % stride) + stride) % stride) / stride;
    }
    sites.insert(out);
  }
  return sites;
}

// Returns the output sites by spconv's rule: every site that an input reaches, within the output's shape.
inline std::set<Place> PaddedSites(const ReferenceConv& conv, const Rows& in, const Place& out_shape) {
  std::set<Place> sites;
  for (const auto& [site, row] : in) {
    for (const Place& delta : conv.deltas) {
      const std::optional<Place> out = CoarseSite(conv, site, delta);
      if (out && IsWithin(*out, out_shape, conv.dimension)) sites.insert(*out);
    }
  }
  return sites;
}

// Returns the output sites by TorchSparse's rule (MLSys 2022): every site that an input reaches, with
// lower <= stride * site <= upper. Without a lower bound, the bound is the smallest input coordinate of each axis. If
// the stride is 1 or equals the kernel's size on every axis, the rule is FloorSites.
inline std::set<Place> ExpandSites(const ReferenceConv& conv, const Rows& in, const Place& kernel_size,
                                   const std::optional<Place>& lower, const std::optional<Place>& upper) {
  const auto dimension = static_cast<size_t>(conv.dimension);
  bool is_floor = true;
  for (size_t a = 0; a < dimension; ++a) is_floor &= conv.stride[a] == 1 || conv.stride[a] == kernel_size[a];
  if (is_floor) return FloorSites(conv, in);
  std::set<Place> sites;
  if (in.empty()) return sites;
  Place least = lower.value_or(in.begin()->first);
  for (const auto& [site, row] : in) {
    for (size_t a = 0; a < dimension && !lower; ++a) least[a] = std::min(least[a], site[a]);
  }
  for (const auto& [site, row] : in) {
    for (const Place& delta : conv.deltas) {
      const std::optional<Place> out = CoarseSite(conv, site, delta);
      bool exists = out.has_value();
      for (size_t a = 0; a < dimension && exists; ++a) {
        const int32_t at = conv.stride[a] * (*out)[a];
        exists = at >= least[a] && (!upper || at <= (*upper)[a]);
      }
      if (exists) sites.insert(*out);
    }
  }
  return sites;
}

// Returns every fine site that an input reaches. `shape` is the output's shape, outside of which a transposed
// convolution has no sites. A generative convolution has no shape (nullopt).
inline std::set<Place> TransposedSites(const ReferenceConv& conv, const Rows& in, const std::optional<Place>& shape) {
  std::set<Place> sites;
  for (const auto& [site, row] : in) {
    for (const Place& delta : conv.deltas) {
      const Place out = FineSite(conv, site, delta);
      if (!shape || IsWithin(out, *shape, conv.dimension)) sites.insert(out);
    }
  }
  return sites;
}

// Adds the product of an input row and the weights of kernel cell `cell` to an output row.
inline void AddProduct(const ReferenceConv& conv, size_t cell, const std::vector<double>& in,
                       std::vector<double>& out) {
  const auto groups = static_cast<size_t>(conv.groups);
  const size_t in_a_group = in.size() / groups, out_a_group = out.size() / groups;
  for (size_t o = 0; o < out.size(); ++o) {
    const size_t group = o / out_a_group;
    for (size_t i = 0; i < in_a_group; ++i) {
      out[o] += in[group * in_a_group + i] * conv.weight[(cell * in_a_group + i) * out.size() + o];
    }
  }
}

// Returns the output row of a site. `read` has the input rows that the site reads, by kernel cell. If `read` is empty,
// the row is zeros.
inline std::vector<double> Combine(const ReferenceConv& conv,
                                   const std::map<size_t, const std::vector<double>*>& read) {
  std::vector<double> out(static_cast<size_t>(conv.out_channels), 0.0);
  if (!conv.reduce) {
    for (const auto& [cell, row] : read) AddProduct(conv, cell, *row, out);
    return out;
  }
  for (size_t c = 0; c < out.size() && !read.empty(); ++c) {
    double sum = 0, largest = (*read.begin()->second)[c];
    for (const auto& [cell, row] : read) {
      sum += (*row)[c];
      largest = std::max(largest, (*row)[c]);
    }
    out[c] = *conv.reduce == kernels::PoolReduce::kMax   ? largest
             : *conv.reduce == kernels::PoolReduce::kSum ? sum
                                                         : sum / static_cast<double>(read.size());
  }
  return out;
}

// Returns out[o] = sum_k in[stride * o + delta_k] W_k, or the pool of these input rows, for every o in `sites`.
inline Rows Convolve(const ReferenceConv& conv, const Rows& in, const std::set<Place>& sites) {
  Rows out;
  for (const Place& site : sites) {
    std::map<size_t, const std::vector<double>*> read;
    for (size_t k = 0; k < conv.deltas.size(); ++k) {
      const auto found = in.find(FineSite(conv, site, conv.deltas[k]));
      if (found != in.end()) read[k] = &found->second;
    }
    out[site] = Combine(conv, read);
  }
  return out;
}

// Returns out[f] for every f in `sites`: the sum of in[c] W_k over all c and k with f = stride * c + delta_k, or the
// pool of these input rows.
inline Rows ConvolveTransposed(const ReferenceConv& conv, const Rows& in, const std::set<Place>& sites) {
  Rows out;
  for (const Place& site : sites) {
    std::map<size_t, const std::vector<double>*> read;
    for (size_t k = 0; k < conv.deltas.size(); ++k) {
      const std::optional<Place> coarse = CoarseSite(conv, site, conv.deltas[k]);
      const auto found = coarse ? in.find(*coarse) : in.end();
      if (found != in.end()) read[k] = &found->second;
    }
    out[site] = Combine(conv, read);
  }
  return out;
}

}  // namespace voxserve
