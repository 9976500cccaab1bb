#pragma once

// Runs a graph node by node in double precision, with maps of coordinates and no fusion, no shared buffer, no rulebook:
// the oracle of compiled programs.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/engine/graph/graph_builder.h"

namespace voxserve {

// One point a voxel: x, y, z are the site and the features are x, y, z, f.
struct Points {
  std::vector<float> values;  // [n, 4]
  size_t size() const { return values.size() / 4; }
};

inline Points RandomPoints(uint32_t seed) {
  std::mt19937 random(seed);
  std::set<Site> sites = {{0, 0, 0}};  // so that the minimum is 0 and sites are the points
  std::uniform_int_distribution<int32_t> x(0, 6), y(0, 4), z(0, 3);
  for (int i = 0; i < 40; ++i) sites.insert({x(random), y(random), z(random)});
  Points points;
  std::uniform_real_distribution<float> f(-1, 1);
  for (const Site& site : sites) {
    for (const int32_t c : site) points.values.push_back(static_cast<float>(c));
    points.values.push_back(f(random));
  }
  return points;
}

class Interpreter {
 public:
  Interpreter(const Graph& graph, const Points& points) : graph_(graph) {
    for (size_t i = 0; i < points.size(); ++i) {
      const float* p = points.values.data() + i * 4;
      const Site site = {static_cast<int32_t>(p[0]), static_cast<int32_t>(p[1]), static_cast<int32_t>(p[2])};
      voxels_[site] = {p[0], p[1], p[2], p[3]};
    }
  }

  const Values& Evaluate(int node) {
    const auto found = values_.find(node);
    if (found != values_.end()) return found->second;
    return values_[node] = Compute(graph_.nodes[static_cast<size_t>(node)]);
  }

 private:
  Values Compute(const GraphNode& node) {
    if (std::holds_alternative<VoxelizeOp>(node.op)) return voxels_;
    const Values in = Evaluate(node.inputs[0]);
    if (const auto* conv = std::get_if<SparseConvOp>(&node.op)) return Convolve(*conv, node, in);
    Values out = in;
    for (auto& [site, row] : out) {
      if (const auto* linear = std::get_if<LinearOp>(&node.op)) {
        std::vector<double> result(static_cast<size_t>(linear->out_channels));
        for (size_t o = 0; o < result.size(); ++o) {
          result[o] = linear->bias ? linear->bias->values[o] : 0.0;
          for (size_t i = 0; i < row.size(); ++i) result[o] += row[i] * linear->weight->values[o * row.size() + i];
        }
        row = result;
      } else if (const auto* norm = std::get_if<BatchNormOp>(&node.op)) {
        for (size_t c = 0; c < row.size(); ++c) {
          row[c] = (row[c] - norm->running_mean->values[c]) /
                       std::sqrt(double{norm->running_var->values[c]} + double{norm->epsilon}) *
                       norm->weight->values[c] +
                   norm->bias->values[c];
        }
      } else if (std::holds_alternative<ActivationOp>(node.op)) {
        for (double& value : row) value = std::max(value, 0.0);
      } else if (std::holds_alternative<AddOp>(node.op)) {
        const std::vector<double> other = Evaluate(node.inputs[1]).at(site);
        for (size_t c = 0; c < row.size(); ++c) row[c] += other[c];
      } else if (std::holds_alternative<ConcatOp>(node.op)) {
        for (size_t i = 1; i < node.inputs.size(); ++i) {
          const std::vector<double> other = Evaluate(node.inputs[i]).at(site);
          row.insert(row.end(), other.begin(), other.end());
        }
      }
    }
    return out;
  }

  // The coarse sites by the rule's definition; all sites here are 0 or more, and the sample's minimum is 0.
  std::set<Site> CoarseSites(const SiteRule& rule) const {
    std::set<Site> sites;
    for (const auto& [site, unused] : voxels_) {
      if (rule.rule == kernels::CoordinateRule::kFloor) {
        sites.insert({site[0] / 2, site[1] / 2, site[2] / 2});
        continue;
      }
      for (int32_t k = 0; k < rule.geometry.NumOffsets(); ++k) {
        const kernels::Axes delta = rule.geometry.Delta(k);
        Site out;
        bool exists = true;
        for (size_t axis = 0; axis < 3; ++axis) {
          const int32_t reached = site[axis] - delta[axis];
          out[axis] = reached / 2;
          exists &= reached >= 0 && reached % 2 == 0;
          // (shape + 2 * 1 - (3 - 1) - 1) / 2 + 1
          if (rule.rule == kernels::CoordinateRule::kPadded) exists &= out[axis] < (kShape[axis] - 1) / 2 + 1;
        }
        if (exists) sites.insert(out);
      }
    }
    return sites;
  }

  Values Convolve(const SparseConvOp& conv, const GraphNode& node, const Values& in) {
    if (conv.kind == SparseConvOp::Kind::kStrided) coarse_ = CoarseSites(conv.sites);
    Values out;
    const auto add_site = [&](const Site& site) {
      std::vector<double>& row = out[site];
      row.assign(static_cast<size_t>(conv.out_channels), 0.0);
      if (conv.bias) row.assign(conv.bias->values.begin(), conv.bias->values.end());
    };
    if (node.level == kCoarse) {
      for (const Site& site : coarse_) add_site(site);
    } else {
      for (const auto& [site, unused] : voxels_) add_site(site);
    }
    const kernels::ConvGeometry& geometry = conv.geometry();
    for (auto& [site, row] : out) {
      for (int32_t k = 0; k < geometry.NumOffsets(); ++k) {
        const kernels::Axes delta = geometry.Delta(k);
        Site from;
        bool reaches = true;
        for (size_t axis = 0; axis < 3; ++axis) {
          if (conv.kind == SparseConvOp::Kind::kInverse) {  // site = 2 * from + delta
            reaches &= (site[axis] - delta[axis]) % 2 == 0;
            from[axis] = (site[axis] - delta[axis]) / 2;
          } else {
            from[axis] = geometry.stride[axis] * site[axis] + delta[axis];
          }
        }
        const auto found = reaches ? in.find(from) : in.end();
        if (found == in.end()) continue;
        for (size_t i = 0; i < found->second.size(); ++i) {
          for (size_t o = 0; o < row.size(); ++o) {
            row[o] += found->second[i] *
                      conv.weight->values[(static_cast<size_t>(k) * found->second.size() + i) * row.size() + o];
          }
        }
      }
    }
    return out;
  }

  const Graph& graph_;
  Values voxels_;
  std::set<Site> coarse_;  // of the strided convolutions, which share their level
  std::map<int, Values> values_;
};

}  // namespace voxserve
