#pragma once

// Computes SparseConvNet's layers (B. Graham, M. Engelcke, L. van der Maaten, "3D Semantic Segmentation with
// Submanifold Sparse Convolutional Networks", CVPR 2018) by its own definitions: lists cell by cell what each position
// reads, and sums in double. It handles one sample at a time.

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "tests/engine/executor/conv_reference.h"
#include "tests/support/model_folder.h"

namespace voxserve::sparseconvnet {

inline constexpr Place kOnes = {1, 1, 1, 1};
inline constexpr Place kNone = {0, 0, 0, 0};

// Says that kernel cell `cell` reads the input row at site `in` and adds to the output row at site `out`.
struct Rule {
  size_t cell = 0;
  Place in, out;
};
using Rules = std::vector<Rule>;

inline Rules Swapped(Rules rules) {
  for (Rule& rule : rules) std::swap(rule.in, rule.out);
  return rules;
}

// Makes the rules of each layer. Kernels run over their cells with the last axis fastest.
class RuleMaker {
 public:
  explicit RuleMaker(int dimension) : dimension_(static_cast<size_t>(dimension)) {}

  // Returns all positions of a box that begins at 0. The last axis varies fastest.
  std::vector<Place> Positions(const Place& size) const {
    return BoxDeltas(static_cast<int>(dimension_), size, kOnes, kNone);
  }

  // SubmanifoldConvolution: a site reads from site - size / 2 to site + size - 1 - size / 2.
  Rules Submanifold(const std::set<Place>& sites, const Place& size) const {
    std::vector<Place> offsets = Positions(size);
    for (Place& offset : offsets) offset = Minus(offset, {size[0] / 2, size[1] / 2, size[2] / 2, size[3] / 2});
    return Listed(sites, offsets);
  }

  // PermutohedralSubmanifoldConvolution: a site reads its neighbours in the lattice.
  Rules Listed(const std::set<Place>& sites, const std::vector<Place>& offsets) const {
    Rules rules;
    for (const Place& site : sites) {
      for (size_t cell = 0; cell < offsets.size(); ++cell) {
        Place in = site;
        for (size_t axis = 0; axis < dimension_; ++axis) in[axis] += offsets[cell][axis];
        if (sites.count(in) > 0) rules.push_back({.cell = cell, .in = in, .out = site});
      }
    }
    return rules;
  }

  // Convolution: a position reads from position * stride to position * stride + size - 1. It exists if it reads a site.
  Rules Strided(const std::set<Place>& sites, const Place& size, const Place& stride, const Place& out_size) const {
    Rules rules;
    for (const Place& out : Positions(out_size)) {
      for (const Place& site : sites) {
        bool is_read = true;
        size_t cell = 0;
        for (size_t axis = 0; axis < dimension_; ++axis) {
          const int32_t first = out[axis] * stride[axis], last = first + size[axis] - 1;
          is_read &= first <= site[axis] && site[axis] <= last;
          cell = cell * static_cast<size_t>(size[axis]) + static_cast<size_t>(site[axis] - first);
        }
        if (is_read) rules.push_back({.cell = cell, .in = site, .out = out});
      }
    }
    return rules;
  }

  // FullConvolution: a site makes all positions from site * stride to site * stride + size - 1.
  Rules Full(const std::set<Place>& sites, const Place& size, const Place& stride) const {
    const std::vector<Place> cells = Positions(size);
    Rules rules;
    for (const Place& site : sites) {
      for (size_t cell = 0; cell < cells.size(); ++cell) {
        Place out = site;
        for (size_t axis = 0; axis < dimension_; ++axis) out[axis] = site[axis] * stride[axis] + cells[cell][axis];
        rules.push_back({.cell = cell, .in = site, .out = out});
      }
    }
    return rules;
  }

 private:
  Place Minus(Place place, const Place& other) const {
    for (size_t axis = 0; axis < dimension_; ++axis) place[axis] -= other[axis];
    return place;
  }

  const size_t dimension_;
};

// The weights of a convolution, [cells, groups, in, out].
struct Weights {
  size_t cells = 1, groups = 1, in = 1, out = 1;  // `in` and `out` are the channels of one group
  std::vector<float> values;
  std::vector<float> bias;  // empty, or [groups * out]

  float At(size_t cell, size_t group, size_t i, size_t o) const {
    return values[((cell * groups + group) * in + i) * out + o];
  }

  // Returns the weights in the layout of a model folder: [cells, in, groups * out].
  support::TestTensor Served() const {
    std::vector<float> served;
    for (size_t cell = 0; cell < cells; ++cell) {
      for (size_t i = 0; i < in; ++i) {
        for (size_t group = 0; group < groups; ++group) {
          for (size_t o = 0; o < out; ++o) served.push_back(At(cell, group, i, o));
        }
      }
    }
    return support::FloatTensor(
        {static_cast<int64_t>(cells), static_cast<int64_t>(in), static_cast<int64_t>(groups * out)}, served);
  }
};

// Returns the rows at out_sites: the bias, plus the product of each rule.
inline Rows Convolve(const Weights& weights, const Rules& rules, const Rows& in, const std::set<Place>& out_sites) {
  Rows out;
  std::vector<double> bias(weights.groups * weights.out, 0.0);
  std::copy(weights.bias.begin(), weights.bias.end(), bias.begin());
  for (const Place& site : out_sites) out[site] = bias;
  for (const Rule& rule : rules) {
    const std::vector<double>& from = in.at(rule.in);
    std::vector<double>& to = out.at(rule.out);
    for (size_t group = 0; group < weights.groups; ++group) {
      for (size_t i = 0; i < weights.in; ++i) {
        for (size_t o = 0; o < weights.out; ++o) {
          to[group * weights.out + o] += from[group * weights.in + i] * weights.At(rule.cell, group, i, o);
        }
      }
    }
  }
  return out;
}

inline std::set<Place> Reached(const Rules& rules) {
  std::set<Place> sites;
  for (const Rule& rule : rules) sites.insert(rule.out);
  return sites;
}

}  // namespace voxserve::sparseconvnet
