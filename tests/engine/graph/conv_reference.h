#pragma once

// Sparse convolutions and pools by their definitions: maps of coordinates, loops over sites and cells, sums in double.
// One sample at a time; no level, rulebook or batch.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace voxserve {

using Place = std::array<int32_t, 4>;               // a site, or one number an axis; 0 past the dimension
using Rows = std::map<Place, std::vector<double>>;  // rows of a tensor by site

// fine = stride * coarse + delta, one delta a cell in the order of the weights.
struct ReferenceConv {
  int dimension = 3;
  Place stride = {1, 1, 1, 1};
  std::vector<Place> deltas;
  int groups = 1;
  int out_channels = 0;
  std::vector<float> weight;  // [K, in channels / groups, out channels]
};

// All cells of a box, the last axis fastest.
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

// Centred where the size is odd, from the site where it is even.
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

// None where the division leaves a remainder.
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

// MinkowskiEngine: floor(c / stride).
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

// spconv: what an input reaches, within the output's shape.
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

// Transposed within a shape; generative without one.
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

// out[o] = sum_k in[stride * o + delta_k] W_k at these sites.
inline Rows Convolve(const ReferenceConv& conv, const Rows& in, const std::set<Place>& sites) {
  Rows out;
  for (const Place& site : sites) {
    std::vector<double>& row = out[site];
    row.assign(static_cast<size_t>(conv.out_channels), 0.0);
    for (size_t k = 0; k < conv.deltas.size(); ++k) {
      const auto found = in.find(FineSite(conv, site, conv.deltas[k]));
      if (found != in.end()) AddProduct(conv, k, found->second, row);
    }
  }
  return out;
}

// out[f] = sum of in[c] W_k over f = stride * c + delta_k at these sites.
inline Rows ConvolveTransposed(const ReferenceConv& conv, const Rows& in, const std::set<Place>& sites) {
  Rows out;
  for (const Place& site : sites) {
    std::vector<double>& row = out[site];
    row.assign(static_cast<size_t>(conv.out_channels), 0.0);
    for (size_t k = 0; k < conv.deltas.size(); ++k) {
      const std::optional<Place> coarse = CoarseSite(conv, site, conv.deltas[k]);
      if (!coarse) continue;
      const auto found = in.find(*coarse);
      if (found != in.end()) AddProduct(conv, k, found->second, row);
    }
  }
  return out;
}

// REDUCE_MAX, REDUCE_AVERAGE or REDUCE_SUM of rows, channel by channel; 0 of none.
inline std::vector<double> Reduce(const std::string& reduce, const std::vector<const std::vector<double>*>& rows,
                                  size_t channels) {
  std::vector<double> reduced(channels, 0.0);
  for (size_t c = 0; c < channels; ++c) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const double value = (*rows[i])[c];
      reduced[c] = reduce != "REDUCE_MAX" ? reduced[c] + value : i == 0 ? value : std::max(reduced[c], value);
    }
    if (reduce == "REDUCE_AVERAGE" && !rows.empty()) reduced[c] /= static_cast<double>(rows.size());
  }
  return reduced;
}

// The rows in[stride * o + delta_k] that are there, reduced, at these sites.
inline Rows Pool(const ReferenceConv& conv, const Rows& in, const std::set<Place>& sites, const std::string& reduce) {
  Rows out;
  for (const Place& site : sites) {
    std::vector<const std::vector<double>*> rows;
    for (const Place& delta : conv.deltas) {
      const auto found = in.find(FineSite(conv, site, delta));
      if (found != in.end()) rows.push_back(&found->second);
    }
    out[site] = Reduce(reduce, rows, static_cast<size_t>(conv.out_channels));
  }
  return out;
}

// The rows in[c] with f = stride * c + delta_k that are there, reduced, at these sites f.
inline Rows Unpool(const ReferenceConv& conv, const Rows& in, const std::set<Place>& sites, const std::string& reduce) {
  Rows out;
  for (const Place& site : sites) {
    std::vector<const std::vector<double>*> rows;
    for (const Place& delta : conv.deltas) {
      const std::optional<Place> coarse = CoarseSite(conv, site, delta);
      const auto found = coarse ? in.find(*coarse) : in.end();
      if (found != in.end()) rows.push_back(&found->second);
    }
    out[site] = Reduce(reduce, rows, static_cast<size_t>(conv.out_channels));
  }
  return out;
}

}  // namespace voxserve
