#pragma once

// Interpreter runs a graph node by node in double precision. Tests compare the results of compiled programs with it. A
// tensor is a std::map from site to row. There is no fusion, and there are no shared buffers or rulebooks. It handles
// the graphs of GraphBuilder for one cloud. Strided convolutions and pools must have stride 2 and one common level.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tests/engine/executor/graph_builder.h"
#include "tests/engine/executor/query_definitions.h"
#include "tests/engine/executor/random_points.h"
#include "tests/engine/executor/row_definitions.h"
#include "tests/support/curve_formulas.h"

namespace voxserve {

// Keys of rows that have no site. kSampleRow is the key in a tensor with one row per sample. PointRow(i) is the key of
// point i in a tensor on kPointLevel. In a dense grid, a cell's position is the key of its row.
inline constexpr Site kSampleRow = {-1, -1, -1};
inline Site PointRow(size_t i) { return {-2, static_cast<int32_t>(i), 0}; }

class Interpreter {
 public:
  Interpreter(const Graph& graph, const Points& points)
      : graph_(graph), shape_(graph.dimension == 3 ? *graph.voxelize_op().grid_shape : kShape) {
    for (size_t i = 0; i < points.size(); ++i) {
      const float* p = points.values.data() + i * 4;
      points_.push_back({p[0], p[1], p[2], p[3]});
      sites_.push_back(SiteOf(points_.back()));
      // A voxel has the features of its first point.
      if (sites_.back()) voxels_.try_emplace(*sites_.back(), points_.back());
    }
  }

  // Returns the row of a node that belongs to a point: the point's own row if the node is on points, else the row of
  // the point's voxel. Returns nullopt if the point has no voxel.
  std::optional<std::vector<double>> EvaluateAt(int node, size_t point) {
    if (!sites_[point]) return std::nullopt;
    const bool is_on_points = graph_.nodes[static_cast<size_t>(node)].level == kPointLevel;
    return Evaluate(node).at(is_on_points ? PointRow(point) : *sites_[point]);
  }

  // Returns all rows of a node. Computes each node once.
  const Values& Evaluate(int node) {
    const auto found = values_.find(node);
    if (found != values_.end()) return found->second;
    Values& values = values_[node] = Compute(graph_.nodes[static_cast<size_t>(node)]);
    if (edit_) edit_(node, values);
    return values;
  }

  // Makes Evaluate call edit(node, values) for each node that it has computed.
  void EditValues(std::function<void(int node, Values& values)> edit) { edit_ = std::move(edit); }

 private:
  // Returns the voxel of a point, or nullopt if it has none.
  std::optional<Site> SiteOf(const std::vector<double>& point) const {
    const bool floors = graph_.voxelize_op().rounding == kernels::VoxelRounding::kFloor;
    Site site;
    for (size_t axis = 0; axis < 3; ++axis) {
      if (!(point[axis] >= 0 && point[axis] < shape_[axis])) return std::nullopt;
      site[axis] = static_cast<int32_t>(floors ? std::floor(point[axis]) : std::nearbyint(point[axis]));
      if (site[axis] >= shape_[axis]) return std::nullopt;
    }
    return site;
  }

  Values Compute(const GraphNode& node) {
    if (std::holds_alternative<VoxelizeOp>(node.op)) return voxels_;
    if (std::holds_alternative<PointFeaturesOp>(node.op)) {
      Values out;
      for (size_t i = 0; i < points_.size(); ++i) {
        out[PointRow(i)] = sites_[i] ? points_[i] : std::vector<double>(points_[i].size());
      }
      return out;
    }
    if (const auto* rows = std::get_if<SampleRowsOp>(&node.op)) return RowsOfASample(*rows, node);
    if (const auto* position = std::get_if<SitePositionOp>(&node.op)) return SitePositions(*position);
    const Values in = Evaluate(node.inputs[0]);
    if (const auto* attention = std::get_if<AttentionOp>(&node.op)) {
      if (attention->groups_of >= 0) {
        const auto& groups = std::get<GroupsOp>(graph_.nodes[static_cast<size_t>(attention->groups_of)].op);
        return AttendInGroups(*attention, groups, Ordered(groups.order), in, Evaluate(node.inputs[1]),
                              Evaluate(node.inputs[2]));
      }
      return Attend(*attention, in, Evaluate(node.inputs[1]), Evaluate(node.inputs[2]));
    }
    if (std::holds_alternative<VoxelToPointOp>(node.op)) {
      Values out;
      for (size_t i = 0; i < points_.size(); ++i) {
        out[PointRow(i)] = sites_[i] ? in.at(*sites_[i]) : std::vector<double>(static_cast<size_t>(node.channels));
      }
      return out;
    }
    if (std::holds_alternative<DevoxelizeOp>(node.op)) return Devoxelize(node, in);
    if (const auto* to_voxel = std::get_if<PointToVoxelOp>(&node.op)) return PointToVoxel(*to_voxel, node, in);
    if (const auto* conv = std::get_if<SparseConvOp>(&node.op)) return Convolve(*conv, node, in);
    if (const auto* pool = std::get_if<PoolOp>(&node.op)) return Pool(*pool, node, in);
    if (const auto* global = std::get_if<GlobalPoolOp>(&node.op)) {
      std::vector<std::vector<double>> rows;
      for (const auto& [site, row] : in) rows.push_back(row);
      for (std::vector<double>& row : rows) {
        if (global->exponent == 0) break;
        for (double& value : row) value = std::pow(std::max(value, double{global->epsilon}), global->exponent);
      }
      std::vector<double> reduced = Reduce(global->reduce, rows, static_cast<size_t>(node.channels));
      for (double& value : reduced) value = global->exponent == 0 ? value : std::pow(value, 1.0 / global->exponent);
      return {{kSampleRow, reduced}};
    }
    if (const auto* norm = std::get_if<SampleNormOp>(&node.op)) return NormalizeSample(*norm, in);
    if (const auto* to_dense = std::get_if<ToDenseOp>(&node.op)) {
      Values cells = Cells(node);
      for (const auto& [site, row] : in) {
        if (!to_dense->is_from_above) {
          cells.at(site) = row;
          continue;
        }
        std::vector<double>& cell = cells.at({site[1], site[0], 0});
        const size_t depth = cell.size() / row.size();
        for (size_t c = 0; c < row.size(); ++c) cell[c * depth + static_cast<size_t>(site[2])] = row[c];
      }
      return cells;
    }
    if (std::holds_alternative<FromDenseOp>(node.op)) {
      Values sites = Sites(node.level);
      for (auto& [site, row] : sites) row = in.at(site);
      return sites;
    }
    if (const auto* conv = std::get_if<Conv2dOp>(&node.op)) return ConvolveImage(*conv, node, in);
    if (const auto* select = std::get_if<SelectOp>(&node.op)) return SelectQueries(*select, in);
    if (const auto* gather = std::get_if<GatherOp>(&node.op)) {
      return GatherQueries(gather->of, in, Evaluate(node.inputs.back()));
    }
    if (std::holds_alternative<CropOp>(node.op) || std::holds_alternative<PruneOp>(node.op)) {
      Values out = Sites(node.level);
      for (auto& [site, row] : out) row = in.at(site);
      return out;
    }
    const auto* const add = std::get_if<AddOp>(&node.op);
    const auto* const concat = std::get_if<ConcatOp>(&node.op);
    if ((add && !add->rulebooks.empty()) || (concat && !concat->rulebooks.empty())) return Unite(node);
    Values out = in;
    for (auto& [site, row] : out) {
      if (ComputeRow(node.op, &row)) continue;
      if (std::holds_alternative<AddOp>(node.op)) {
        const std::vector<double> other = Evaluate(node.inputs[1]).at(site);
        for (size_t c = 0; c < row.size(); ++c) row[c] += other[c];
      } else if (const auto* elementwise = std::get_if<ElementwiseOp>(&node.op)) {
        row = CombineRows(*elementwise, row, Evaluate(node.inputs[1]).at(site));
      } else if (const auto* rotary = std::get_if<RotaryOp>(&node.op)) {
        std::vector<double> position(site.begin(), site.begin() + graph_.dimension);
        if (node.inputs.size() > 1) position = Evaluate(node.inputs[1]).at(site);
        row = RotateRow(*rotary, position, row);
      } else if (const auto* coordinates = std::get_if<SiteCoordinatesOp>(&node.op)) {
        row.clear();
        for (size_t axis = 0; axis < site.size(); ++axis) {
          const kernels::SiteCoordinatesParams& of = coordinates->parameters;
          const int32_t window = of.window_shape[axis];
          const int32_t at = window > 0 ? (site[axis] + of.window_shift[axis]) % window : site[axis];  // not negative
          row.push_back(at * double{of.scale[axis]} + of.shift[axis]);
        }
      } else if (const auto* broadcast = std::get_if<BroadcastOp>(&node.op)) {
        const std::vector<double> sample = Evaluate(node.inputs[1]).begin()->second;
        if (broadcast->function == BroadcastOp::Function::kConcat) {
          row.insert(row.end(), sample.begin(), sample.end());
          continue;
        }
        for (size_t c = 0; c < row.size(); ++c) {
          row[c] = broadcast->function == BroadcastOp::Function::kAdd ? row[c] + sample[c] : row[c] * sample[c];
        }
      } else if (std::holds_alternative<ConcatOp>(node.op)) {
        for (size_t i = 1; i < node.inputs.size(); ++i) {
          const std::vector<double> other = Evaluate(node.inputs[i]).at(site);
          row.insert(row.end(), other.begin(), other.end());
        }
      }
    }
    return out;
  }

  // Returns the position of each voxel's first point, or the mean of its points' positions.
  Values SitePositions(const SitePositionOp& op) const {
    const auto dimension = static_cast<size_t>(graph_.dimension);
    Values out;
    std::map<Site, double> counts;
    std::vector<double> minimum(dimension, op.is_from_minimum ? std::numeric_limits<double>::infinity() : 0);
    for (size_t i = 0; i < points_.size(); ++i) {
      if (!sites_[i]) continue;
      std::vector<double>& sum = out[*sites_[i]];
      sum.resize(dimension);
      double& count = counts[*sites_[i]];
      for (size_t axis = 0; axis < dimension; ++axis) {
        if (count == 0 || op.is_mean) sum[axis] += points_[i][axis];
        minimum[axis] = std::min(minimum[axis], points_[i][axis]);
      }
      count += count == 0 || op.is_mean ? 1 : 0;
    }
    for (auto& [site, row] : out) {
      for (size_t axis = 0; axis < dimension; ++axis) {
        const double origin = op.is_from_minimum ? minimum[axis] : 0;
        row[axis] = (row[axis] / counts[site] - origin) * op.scale[axis] + op.shift[axis];
      }
    }
    return out;
  }

  // Returns the coarse sites that the voxels produce by the definition of the rule, with a stride of 2. Voxels have
  // coordinates of 0 or more, so an integer division rounds down. On each axis the smallest coordinate of a voxel is 0,
  // which is the lower bound that kExpand uses.
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
          if (rule.rule == kernels::CoordinateRule::kPadded) exists &= out[axis] < (shape_[axis] - 1) / 2 + 1;
        }
        if (exists) sites.insert(out);
      }
    }
    return sites;
  }

  // Returns the rows of `in` that the output site `site` reads, by kernel cell.
  static std::map<int32_t, std::vector<double>> Read(const kernels::ConvGeometry& geometry, SparseConvOp::Kind kind,
                                                     const Site& site, const Values& in) {
    std::map<int32_t, std::vector<double>> rows;
    for (int32_t k = 0; k < geometry.NumOffsets(); ++k) {
      const kernels::Axes delta = geometry.Delta(k);
      Site from;
      bool reaches = true;
      for (size_t axis = 0; axis < 3; ++axis) {
        if (kind == SparseConvOp::Kind::kInverse) {  // site = 2 * from + delta
          reaches &= (site[axis] - delta[axis]) % 2 == 0;
          from[axis] = (site[axis] - delta[axis]) / 2;
        } else {
          from[axis] = geometry.stride[axis] * site[axis] + delta[axis];
        }
      }
      const auto found = reaches ? in.find(from) : in.end();
      if (found != in.end()) rows[k] = found->second;
    }
    return rows;
  }

  // Returns the sites of the level, without values.
  Values Sites(int index) {
    const CoordinateLevel& level = graph_.levels.levels()[static_cast<size_t>(index)];
    Values sites;
    if (index == kFine) {
      for (const auto& [site, unused] : voxels_) sites[site];
    } else if (level.united_with >= 0) {
      sites = Sites(level.parent);
      sites.merge(Sites(level.united_with));
    } else if (level.filter) {
      for (const auto& [site, unused] : Sites(level.parent)) {
        bool stays = true;
        for (size_t axis = 0; axis < 3; ++axis) {
          stays &= site[axis] >= level.filter->lower[axis] && site[axis] < level.filter->upper[axis];
        }
        const int scores = level.filter->score_node;
        if (stays && (scores < 0 || Evaluate(scores).at(site)[0] > level.filter->threshold)) sites[site];
      }
    } else {
      for (const Site& site : coarse_) sites[site];
    }
    return sites;
  }

  // Returns the sites of an order's level in their order.
  std::vector<Site> Ordered(const SiteOrderSpec& order) {
    const auto sites_of = [this](int level) {
      std::vector<Site> sites;
      for (const auto& [site, unused] : Sites(level)) sites.push_back(site);
      return sites;
    };
    const bool is_hilbert = kernels::IsHilbert(order.curve);
    const bool is_transposed =
        order.curve == kernels::Curve::kZTransposed || order.curve == kernels::Curve::kHilbertTransposed;
    const int depth = is_hilbert ? support::DefinedCurveDepth(sites_of(order.depth_level), order.halvings) : 0;
    const auto code = [&](const Site& site) {
      return support::DefinedCurveCode(is_hilbert, is_transposed, site, depth);
    };
    std::vector<Site> sites = sites_of(order.level);
    if (order.windows) {
      const support::DefinedWindows windows = DefinedWindowsOf(*order.windows);
      std::sort(sites.begin(), sites.end(), [&](const Site& a, const Site& b) {
        return DefinedWindowPlace(windows, a) < DefinedWindowPlace(windows, b);
      });
      return sites;
    }
    std::sort(sites.begin(), sites.end(), [&](const Site& a, const Site& b) { return code(a) < code(b); });
    return sites;
  }

  // Returns all cells of a grid, with rows of 0.
  static Values Cells(const GraphNode& node) {
    Values cells;
    const kernels::Axes& size = node.grid->size;
    for (int32_t a = 0; a < size[0]; ++a) {
      for (int32_t b = 0; b < size[1]; ++b) {
        for (int32_t c = 0; c < size[2]; ++c) cells[{a, b, c}].assign(static_cast<size_t>(node.channels), 0.0);
      }
    }
    return cells;
  }

  static Values RowsOfASample(const SampleRowsOp& op, const GraphNode& node) {
    Values rows = node.grid ? Cells(node) : Values{{kSampleRow, {}}};
    auto from = op.weight->values.begin();
    for (auto& [place, row] : rows) {
      row.assign(from, from + node.channels);
      from += node.channels;
    }
    return rows;
  }

  // Returns the convolution of an image by PyTorch's definition: every output position sums over all kernel cells.
  static Values ConvolveImage(const Conv2dOp& conv, const GraphNode& node, const Values& in) {
    const kernels::Conv2dGeometry& geometry = conv.geometry;
    const auto ins = static_cast<size_t>(conv.in_channels / geometry.groups);
    const auto outs = static_cast<size_t>(conv.out_channels / geometry.groups);
    Values out = Cells(node);
    for (auto& [to, row] : out) {
      for (int32_t i = 0; i < geometry.kernel_size[0]; ++i) {
        for (int32_t j = 0; j < geometry.kernel_size[1]; ++j) {
          Site from = {0, 0, 0};
          bool is_reached = true;
          for (size_t axis = 0; axis < 2; ++axis) {
            const int32_t cell = axis == 0 ? i : j;
            const int32_t moved = geometry.is_transposed ? to[axis] + geometry.padding[axis] - cell
                                                         : to[axis] * geometry.stride[axis] - geometry.padding[axis] +
                                                               cell * geometry.dilation[axis];
            is_reached &= !geometry.is_transposed || moved % geometry.stride[axis] == 0;
            from[axis] = geometry.is_transposed ? moved / geometry.stride[axis] : moved;
          }
          const auto found = is_reached ? in.find(from) : in.end();
          if (found == in.end()) continue;
          for (size_t o = 0; o < row.size(); ++o) {
            for (size_t c = 0; c < ins; ++c) {
              const size_t channel = o / outs * ins + c;
              const size_t matrix = geometry.is_transposed ? channel * row.size() + o : o * ins + c;
              const auto cell = static_cast<size_t>(i * geometry.kernel_size[1] + j);
              const auto cells = static_cast<size_t>(geometry.kernel_size[0] * geometry.kernel_size[1]);
              row[o] += found->second[channel] * conv.weight->values[matrix * cells + cell];
            }
          }
        }
      }
      for (size_t o = 0; conv.bias && o < row.size(); ++o) row[o] += conv.bias->values[o];
    }
    return out;
  }

  Values Unite(const GraphNode& node) {
    Values out = Sites(node.level);
    for (auto& [site, row] : out) {
      for (const int input : node.inputs) {
        const Values& values = Evaluate(input);
        const auto found = values.find(site);
        const std::vector<double> none(static_cast<size_t>(graph_.nodes[static_cast<size_t>(input)].channels));
        const std::vector<double>& added = found == values.end() ? none : found->second;
        if (std::holds_alternative<ConcatOp>(node.op)) {
          row.insert(row.end(), added.begin(), added.end());
        } else {
          row.resize(added.size());
          for (size_t c = 0; c < row.size(); ++c) row[c] += added[c];
        }
      }
    }
    return out;
  }

  Values Convolve(const SparseConvOp& conv, const GraphNode& node, const Values& in) {
    if (conv.kind == SparseConvOp::Kind::kStrided && conv.sites_of < 0) coarse_ = CoarseSites(conv.sites);
    Values out = Sites(node.level);
    for (auto& [site, row] : out) {
      row.assign(static_cast<size_t>(conv.out_channels), 0.0);
      if (conv.bias) row.assign(conv.bias->values.begin(), conv.bias->values.end());
      for (const auto& [k, from] : Read(conv.geometry(), conv.kind, site, in)) {
        for (size_t i = 0; i < from.size(); ++i) {
          for (size_t o = 0; o < row.size(); ++o) {
            row[o] += from[i] * conv.weight->values[(static_cast<size_t>(k) * from.size() + i) * row.size() + o];
          }
        }
      }
    }
    return out;
  }

  static std::vector<double> Reduce(kernels::PoolReduce reduce, const std::vector<std::vector<double>>& rows,
                                    size_t channels) {
    std::vector<double> out(channels);
    for (size_t c = 0; c < channels && !rows.empty(); ++c) {
      double sum = 0, largest = rows[0][c];
      for (const std::vector<double>& row : rows) {
        sum += row[c];
        largest = std::max(largest, row[c]);
      }
      out[c] = reduce == kernels::PoolReduce::kMax   ? largest
               : reduce == kernels::PoolReduce::kSum ? sum
                                                     : sum / static_cast<double>(rows.size());
    }
    return out;
  }

  Values Pool(const PoolOp& pool, const GraphNode& node, const Values& in) {
    if (pool.kind == SparseConvOp::Kind::kStrided) coarse_ = CoarseSites(pool.sites);
    Values out = Sites(node.level);
    for (auto& [site, row] : out) {
      std::vector<std::vector<double>> rows;
      for (const auto& [k, from] : Read(pool.sites.geometry, pool.kind, site, in)) rows.push_back(from);
      row = Reduce(pool.reduce, rows, static_cast<size_t>(node.channels));
    }
    return out;
  }

  double UnitOf(int level, size_t axis) const {
    const SiteUnit& unit = graph_.levels.levels()[static_cast<size_t>(level)].unit;
    return static_cast<double>(unit.voxels[axis]) / static_cast<double>(unit.parts[axis]);
  }

  // position: in voxels.
  std::vector<double> Interpolate(const Values& in, int level, const std::array<double, 3>& position, int channels) {
    std::vector<double> out(static_cast<size_t>(channels));
    double sum = 0;
    for (int n = 0; n < 8; ++n) {
      double weight = 1;
      Site site;
      for (size_t axis = 0; axis < 3; ++axis) {
        const double at = position[axis] / UnitOf(level, axis);
        site[axis] = static_cast<int32_t>(std::floor(at)) + (n >> axis & 1);
        weight *= 1 - std::abs(at - site[axis]);
      }
      const auto found = in.find(site);
      if (found == in.end()) continue;
      sum += weight;
      for (size_t c = 0; c < out.size(); ++c) out[c] += weight * found->second[c];
    }
    for (double& value : out) value /= sum + 1e-8;
    return out;
  }

  Values Devoxelize(const GraphNode& node, const Values& in) {
    const int level = graph_.nodes[static_cast<size_t>(node.inputs[0])].level;
    Values out;
    if (node.level == kPointLevel) {
      for (size_t i = 0; i < points_.size(); ++i) {
        const std::vector<double>& p = points_[i];
        out[PointRow(i)] = sites_[i] ? Interpolate(in, level, {p[0], p[1], p[2]}, node.channels)
                                     : std::vector<double>(static_cast<size_t>(node.channels));
      }
      return out;
    }
    for (const auto& [site, unused] : Evaluate(node.inputs[1])) {
      std::array<double, 3> position;
      for (size_t axis = 0; axis < 3; ++axis) position[axis] = site[axis] * UnitOf(node.level, axis);
      out[site] = Interpolate(in, level, position, node.channels);
    }
    return out;
  }

  Values PointToVoxel(const PointToVoxelOp& op, const GraphNode& node, const Values& in) {
    Values out = op.sites_of < 0 ? voxels_ : Evaluate(op.sites_of);
    for (auto& [site, row] : out) {
      std::vector<std::vector<double>> rows;
      if (node.inputs.size() == 1) {
        const int fine = graph_.nodes[static_cast<size_t>(node.inputs[0])].level;
        for (const auto& [point, values] : in) {
          bool is_here = true;
          for (size_t axis = 0; axis < 3; ++axis) {
            is_here = is_here && std::floor(point[axis] * UnitOf(fine, axis) / UnitOf(node.level, axis)) == site[axis];
          }
          if (is_here) rows.push_back(values);
        }
        row = Reduce(op.reduce, rows, static_cast<size_t>(node.channels));
        continue;
      }
      for (size_t i = 0; i < points_.size(); ++i) {
        bool is_here = sites_[i].has_value();
        for (size_t axis = 0; axis < 3 && is_here; ++axis) {
          is_here = std::floor((*sites_[i])[axis] / UnitOf(node.level, axis)) == site[axis];
        }
        if (is_here) rows.push_back(in.at(PointRow(i)));
      }
      row = Reduce(op.reduce, rows, static_cast<size_t>(node.channels));
    }
    return out;
  }

  const Graph& graph_;
  const kernels::Axes shape_;  // spatial shape of the voxels
  std::vector<std::vector<double>> points_;
  std::vector<std::optional<Site>> sites_;  // by point
  Values voxels_;
  std::set<Site> coarse_;  // the output sites of the strided convolutions and pools, which share a level
  std::map<int, Values> values_;
  std::function<void(int, Values&)> edit_;  // may be empty
};

}  // namespace voxserve
