#pragma once

// Builds random networks of SparseConvNet's layers in two forms: as a model file for the engine, and as loops over
// SparseConvNet's rules. A rule says which cell of a kernel adds which input row to which output row. Tests compare the
// results of both forms. The table of layers in proto/README.md lists the operators that stand for each layer.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/engine/executor/expected_scores.h"
#include "tests/engine/executor/sparseconvnet_reference.h"

namespace voxserve::sparseconvnet {

// The output of a layer.
struct Layer {
  std::string node;    // the node that computes it
  Place spatial_size;  // SparseConvNet's spatial size
  int channels = 0;
  std::string strided = {};  // for a Convolution or a pooling: its node of KIND_STRIDED
};

// The kernel of a strided or transposed layer: its size and its stride.
struct Box {
  Place size, stride = kOnes;
};

// Returns the spatial size after a strided convolution or pooling. The stride must divide the size exactly, since
// SparseConvNet refuses other sizes.
inline Place Smaller(int dimension, const Place& size, const Box& box) {
  Place out = kOnes;
  for (size_t axis = 0; axis < static_cast<size_t>(dimension); ++axis) {
    EXPECT_EQ((size[axis] - box.size[axis]) % box.stride[axis], 0);
    out[axis] = (size[axis] - box.size[axis]) / box.stride[axis] + 1;
  }
  return out;
}
// Returns the spatial size after a transposed convolution. It is the inverse of Smaller.
inline Place Larger(int dimension, const Place& size, const Box& box) {
  Place out = kOnes;
  for (size_t axis = 0; axis < static_cast<size_t>(dimension); ++axis) {
    out[axis] = (size[axis] - 1) * box.stride[axis] + box.size[axis];
  }
  return out;
}

// Holds a network as a model file and as loops over SparseConvNet's rules. Weights are random. A convolution has a bias
// with probability 1/2, and the values of the bias are random too.
class Network {
 public:
  using Values = std::map<std::string, Rows>;  // the rows of one sample, by node

  Network(int dimension, const Place& spatial_size, int channels, uint32_t seed)
      : dimension_(dimension), rules_(dimension), random_(seed) {
    input_ = {.node = "voxels", .spatial_size = spatial_size, .channels = channels};
    std::vector<std::string> fields, features;
    for (int axis = 0; axis < dimension; ++axis) fields.push_back(absl::StrCat("\"", ConvNetwork::kFields[axis], "\""));
    for (int c = 0; c < channels; ++c) features.push_back(absl::StrCat("features { name: \"f", c, "\" }"));
    model_.graph = absl::StrCat(
        "dimension: ", dimension, "\nnodes { name: \"voxels\" voxelize { voxel_size: ", List(kOnes),
        " rounding: ROUNDING_FLOOR origin: ORIGIN_RANGE range_min: ", List(kNone), " range_max: ", List(spatial_size),
        " reduce: REDUCE_FIRST axes: [", absl::StrJoin(fields, ", "), "] ", absl::StrJoin(features, " "), " } }\n");
  }

  const Layer& input() const { return input_; }

  // A kernel of odd sizes is centred. A kernel with an even size begins at -size / 2, so its cells are listed.
  Layer SubmanifoldConvolution(const Layer& in, const Place& size, int out_channels, int groups = 1) {
    const bool is_odd = std::all_of(size.begin(), size.begin() + dimension_, [](int32_t s) { return s % 2 == 1; });
    std::vector<int32_t> offsets;
    for (const Place& cell : rules_.Positions(size)) {
      for (size_t axis = 0; axis < static_cast<size_t>(dimension_); ++axis) {
        offsets.push_back(cell[axis] - size[axis] / 2);
      }
    }
    const Weights weights = Draw(Volume(size), in.channels, out_channels, groups);
    return AddConvolution(is_odd ? absl::StrCat("kind: KIND_SUBMANIFOLD kernel_size: ", List(size))
                                 : absl::StrCat("kind: KIND_SUBMANIFOLD offsets: [", absl::StrJoin(offsets, ", "), "]"),
                          in, in.spatial_size, weights, [=, rules = rules_](const Values& values) {
                            const Rows& rows = values.at(in.node);
                            return Convolve(weights, rules.Submanifold(SitesOf(rows), size), rows, SitesOf(rows));
                          });
  }

  Layer PermutohedralSubmanifoldConvolution(const Layer& in, int out_channels) {
    const std::vector<Place> offsets = LatticeNeighbours();
    std::vector<std::string> listed;
    for (const Place& offset : offsets) {
      listed.push_back(absl::StrJoin(offset.begin(), offset.begin() + dimension_, ", "));
    }
    const Weights weights = Draw(offsets.size(), in.channels, out_channels, 1);
    return AddConvolution(absl::StrCat("kind: KIND_SUBMANIFOLD offsets: [", absl::StrJoin(listed, ", "), "]"), in,
                          in.spatial_size, weights, [=, rules = rules_](const Values& values) {
                            const Rows& rows = values.at(in.node);
                            return Convolve(weights, rules.Listed(SitesOf(rows), offsets), rows, SitesOf(rows));
                          });
  }

  Layer Convolution(const Layer& in, const Box& box, int out_channels, int groups = 1,
                    const std::string& rule = "RULE_PADDED") {
    const Place out_size = Smaller(dimension_, in.spatial_size, box);
    const Weights weights = Draw(Volume(box.size), in.channels, out_channels, groups);
    return AddConvolution(absl::StrCat("kind: KIND_STRIDED rule: ", rule, " ", Text(box)), in, out_size, weights,
                          [=, rules = rules_](const Values& values) {
                            const Rows& rows = values.at(in.node);
                            const Rules made = rules.Strided(SitesOf(rows), box.size, box.stride, out_size);
                            return Convolve(weights, made, rows, Reached(made));
                          });
  }

  // The output sites are the sites of `fine`. `paired` is the Convolution with the same box that computed the sites of
  // `in` from the sites of `fine`. If a pooling computed the sites of `in`, `paired` is nullopt.
  Layer Deconvolution(const Layer& in, const Layer& fine, const std::optional<Layer>& paired, const Box& box,
                      int out_channels, int groups = 1) {
    EXPECT_EQ(Larger(dimension_, in.spatial_size, box), fine.spatial_size);
    const std::string kind = paired ? absl::StrCat("kind: KIND_INVERSE paired_with: \"", paired->strided, "\"")
                                    : absl::StrCat("kind: KIND_TRANSPOSED sites_of: \"", fine.node, "\" ", Text(box),
                                                   " padding: ", List(kNone));
    const Weights weights = Draw(Volume(box.size), in.channels, out_channels, groups);
    return AddConvolution(kind, in, fine.spatial_size, weights, [=, rules = rules_](const Values& values) {
      const std::set<Place> sites = SitesOf(values.at(fine.node));
      const Rules made = rules.Strided(sites, box.size, box.stride, in.spatial_size);
      return Convolve(weights, Swapped(made), values.at(in.node), sites);
    });
  }

  Layer FullConvolution(const Layer& in, const Box& box, int out_channels, int groups = 1) {
    const Weights weights = Draw(Volume(box.size), in.channels, out_channels, groups);
    return AddConvolution(absl::StrCat("kind: KIND_TRANSPOSED ", Text(box)), in,
                          Larger(dimension_, in.spatial_size, box), weights, [=, rules = rules_](const Values& values) {
                            const Rows& rows = values.at(in.node);
                            const Rules made = rules.Full(SitesOf(rows), box.size, box.stride);
                            return Convolve(weights, made, rows, Reached(made));
                          });
  }

  // SparseConvNet's maximum starts at 0, so negative values become 0. The model file has a maximum followed by a ReLU.
  Layer MaxPooling(const Layer& in, const Box& box, int num_features_to_drop = 0) {
    const Layer kept = Drop(in, num_features_to_drop);
    const Layer largest = AddPool(kept, box, "REDUCE_MAX", [](double& to, double from) { to = std::max(to, from); });
    AddText("activation { function: FUNCTION_RELU }", largest);
    return Named(largest, [largest](const Values& values) { return values.at(largest.node); });
  }

  // SparseConvNet divides by the number of the kernel's cells, whether they have a site or not. The model file has a
  // sum followed by a scale.
  Layer AveragePooling(const Layer& in, const Box& box, int num_features_to_drop = 0) {
    const Layer kept = Drop(in, num_features_to_drop);
    const Layer sum = AddPool(kept, box, "REDUCE_SUM", [](double& to, double from) { to += from; });
    const std::string name = AddText("batch_norm { epsilon: 0 }", sum);
    const auto cells = static_cast<float>(Volume(box.size));
    const auto channels = static_cast<size_t>(sum.channels);
    for (const auto& [tensor, value] : std::map<std::string, float>{
             {"weight", 1 / cells}, {"bias", 0.0f}, {"running_mean", 0.0f}, {"running_var", 1.0f}}) {
      model_.weights[absl::StrCat(name, ".", tensor)] =
          support::FloatTensor({sum.channels}, std::vector<float>(channels, value));
    }
    return Named(sum, [sum, cells](const Values& values) {
      Rows rows = values.at(sum.node);
      for (auto& [site, row] : rows) {
        for (double& value : row) value /= double{cells};
      }
      return rows;
    });
  }

  // `paired` is the pooling with the same box that computed the sites of `in` from the sites of `fine`. Every site of
  // `fine` gets the sum of the rows of `in` into which the pooling reduced the site.
  Layer UnPooling(const Layer& in, const Layer& fine, const Layer& paired, const Box& box) {
    EXPECT_EQ(Larger(dimension_, in.spatial_size, box), fine.spatial_size);
    AddText(absl::StrCat("pool { reduce: REDUCE_SUM kind: KIND_INVERSE paired_with: \"", paired.strided, "\" }"), in);
    Layer out = in;
    out.spatial_size = fine.spatial_size;
    return Named(out, [=, rules = rules_](const Values& values) {
      Rows rows;
      const std::set<Place> sites = SitesOf(values.at(fine.node));
      for (const Place& site : sites) rows[site].assign(static_cast<size_t>(in.channels), 0.0);
      for (const Rule& rule : rules.Strided(sites, box.size, box.stride, in.spatial_size)) {
        const std::vector<double>& from = values.at(in.node).at(rule.out);
        for (size_t c = 0; c < from.size(); ++c) rows.at(rule.in)[c] += from[c];
      }
      return rows;
    });
  }

  Layer JoinTable(const Layer& a, const Layer& b) {
    AddText("concat {}", a, b);
    Layer out = a;
    out.channels += b.channels;
    return Named(out, [=](const Values& values) {
      Rows rows = values.at(a.node);
      for (auto& [site, row] : rows) {
        const std::vector<double>& more = values.at(b.node).at(site);
        row.insert(row.end(), more.begin(), more.end());
      }
      return rows;
    });
  }

  // This is not a layer of SparseConvNet. It returns a row for every voxel: the row of `in` at that site, or zeros if
  // `in` has no such site. Neighbouring sites of `in` must be one voxel apart.
  Layer AtVoxels(const Layer& in) {
    Weights weights{.cells = 1, .in = static_cast<size_t>(in.channels), .out = static_cast<size_t>(in.channels)};
    for (int i = 0; i < in.channels * in.channels; ++i) weights.values.push_back(i % (in.channels + 1) == 0 ? 1 : 0);
    return AddConvolution(absl::StrCat("kind: KIND_STRIDED sites_of: \"voxels\" kernel_size: ", List(kOnes)), in,
                          input_.spatial_size, weights, [=](const Values& values) {
                            Rows rows;
                            for (const auto& [site, row] : values.at("voxels")) {
                              const auto found = values.at(in.node).find(site);
                              const std::vector<double> none(static_cast<size_t>(in.channels), 0.0);
                              rows[site] = found == values.at(in.node).end() ? none : found->second;
                            }
                            return rows;
                          });
  }

  // This is not a layer of SparseConvNet. It appends a channel to `head` that is 1/32 of the number of sites of
  // `counted` at every site, so that a test of the scores also checks that number.
  Layer WithNumSites(const Layer& head, const Layer& counted) {
    constexpr float kPart = 1.0f / 32;  // per site; above the allowed rounding error, so that one missing site shows
    const std::string one = AddText("linear { out_channels: 1 bias: true }", counted);
    model_.weights[one + ".weight"] =
        support::FloatTensor({1, counted.channels}, std::vector<float>(static_cast<size_t>(counted.channels), 0.0f));
    model_.weights[one + ".bias"] = support::FloatTensor({1}, {kPart});
    Layer ones = counted;
    ones.node = one;
    Layer sum = counted;
    sum.node = AddText("global_pool { reduce: REDUCE_SUM }", ones);
    AddText("broadcast { function: FUNCTION_CONCAT }", head, sum);
    Layer out = head;
    ++out.channels;
    return Named(out, [=](const Values& values) {
      Rows rows = values.at(head.node);
      const double number = static_cast<double>(values.at(counted.node).size()) * double{kPart};
      for (auto& [site, row] : rows) row.push_back(number);
      return rows;
    });
  }

  // Expects that the device's scores equal those of the loops, for clouds with one point in each voxel of the samples.
  void ExpectEqual(support::Device device, const Layer& head, const std::vector<Rows>& samples) const {
    support::TestModel model = model_;
    absl::StrAppend(&model.graph, "nodes { name: \"best\" inputs: \"", head.node, "\" argmax {} }\n",
                    "nodes { name: \"labels\" inputs: [\"best\", \"voxels\"] voxel_to_point {} }\n",
                    "nodes { name: \"scores\" inputs: [\"", head.node, "\", \"voxels\"] voxel_to_point {} }\n",
                    "outputs { kind: KIND_LABELS node: \"labels\" } outputs { kind: KIND_SCORES node: \"scores\" }\n");
    std::vector<ScoredCloud> expected;
    for (const Rows& voxels : samples) {
      expected.push_back({.cloud = CloudOf(voxels, dimension_, input_.channels), .scores = {}});
      Values values = {{"voxels", voxels}};
      for (const auto& [node, compute] : loops_) values[node] = compute(values);
      ASSERT_EQ(SitesOf(values.at(head.node)), SitesOf(voxels));
      for (const auto& [site, row] : values.at(head.node)) {
        expected.back().scores.insert(expected.back().scores.end(), row.begin(), row.end());
      }
    }
    ExpectScores(device, model, expected);
  }

 private:
  using Loop = std::function<Rows(const Values&)>;

  std::string List(const Place& place) const {
    return absl::StrCat("[", absl::StrJoin(place.begin(), place.begin() + dimension_, ", "), "]");
  }
  std::string Text(const Box& box) const {
    return absl::StrCat("kernel_size: ", List(box.size), " stride: ", List(box.stride));
  }
  size_t Volume(const Place& size) const { return rules_.Positions(size).size(); }

  // Returns the offsets at a distance of at most 1 from the centre, in a lattice whose axes have length 1 and meet at
  // 60 degrees. The first axis varies fastest.
  std::vector<Place> LatticeNeighbours() const {
    Place threes = kOnes, centre = kNone;
    for (size_t axis = 0; axis < static_cast<size_t>(dimension_); ++axis) threes[axis] = 3, centre[axis] = 1;
    std::vector<Place> neighbours;
    for (Place offset : BoxDeltas(dimension_, threes, kOnes, centre)) {
      std::reverse(offset.begin(), offset.begin() + dimension_);
      int32_t squared_length = 0;
      for (size_t a = 0; a < 4; ++a) {
        for (size_t b = 0; b <= a; ++b) squared_length += offset[a] * offset[b];
      }
      if (squared_length <= 1) neighbours.push_back(offset);
    }
    EXPECT_EQ(neighbours.size(), static_cast<size_t>(dimension_ * dimension_ + dimension_ + 1));
    return neighbours;
  }

  Weights Draw(size_t cells, int in_channels, int out_channels, int groups) {
    Weights weights{.cells = cells,
                    .groups = static_cast<size_t>(groups),
                    .in = static_cast<size_t>(in_channels / groups),
                    .out = static_cast<size_t>(out_channels / groups),
                    .values = {},
                    .bias = {}};
    std::uniform_real_distribution<float> unit(-1, 1);
    weights.values.resize(cells * weights.groups * weights.in * weights.out);
    for (float& value : weights.values) value = unit(random_);
    if (random_() % 2 == 0) weights.bias.resize(static_cast<size_t>(out_channels));
    for (float& value : weights.bias) value = unit(random_);
    return weights;
  }

  // Adds a node to the model file, but no loop. Returns the node's name.
  template <typename... More>
  std::string AddText(const std::string& op, const Layer& in, const More&... more) {
    last_ = absl::StrCat("node", ++num_nodes_);
    std::string inputs = absl::StrCat("\"", in.node, "\"");
    (absl::StrAppend(&inputs, ", \"", more.node, "\""), ...);
    absl::StrAppend(&model_.graph, "nodes { name: \"", last_, "\" inputs: [", inputs, "] ", op, " }\n");
    return last_;
  }

  // Adds the loop of the node that was added last. Returns `layer` with that node's name.
  Layer Named(Layer layer, Loop loop) {
    layer.node = last_;
    if (layer.strided.empty()) layer.strided = last_;
    loops_.emplace_back(last_, std::move(loop));
    return layer;
  }

  Layer AddConvolution(const std::string& kind, const Layer& in, const Place& out_size, const Weights& weights,
                       Loop loop) {
    const auto out_channels = static_cast<int>(weights.groups * weights.out);
    const std::string name =
        AddText(absl::StrCat("sparse_conv { ", kind, " out_channels: ", out_channels, " groups: ", weights.groups,
                             weights.bias.empty() ? "" : " bias: true", " }"),
                in);
    model_.weights[name + ".weight"] = weights.Served();
    if (!weights.bias.empty()) model_.weights[name + ".bias"] = support::FloatTensor({out_channels}, weights.bias);
    return Named({.node = name, .spatial_size = out_size, .channels = out_channels}, std::move(loop));
  }

  Layer AddPool(const Layer& in, const Box& box, const std::string& reduce,
                const std::function<void(double&, double)>& add) {
    const Place out_size = Smaller(dimension_, in.spatial_size, box);
    AddText(absl::StrCat("pool { reduce: ", reduce, " kind: KIND_STRIDED rule: RULE_PADDED ", Text(box), " }"), in);
    return Named({.node = {}, .spatial_size = out_size, .channels = in.channels},
                 [=, rules = rules_](const Values& values) {
                   Rows rows;
                   const Rows& from = values.at(in.node);
                   for (const Rule& rule : rules.Strided(SitesOf(from), box.size, box.stride, out_size)) {
                     std::vector<double>& row = rows[rule.out];
                     row.resize(static_cast<size_t>(in.channels));
                     for (size_t c = 0; c < row.size(); ++c) add(row[c], from.at(rule.in)[c]);
                   }
                   return rows;
                 });
  }

  // Drops the first num_features channels (SparseConvNet's nFeaturesToDrop).
  Layer Drop(const Layer& in, int num_features) {
    if (num_features == 0) return in;
    Layer out = in;
    out.channels -= num_features;
    const std::string name = AddText(absl::StrCat("linear { out_channels: ", out.channels, " }"), in);
    std::vector<float> weight;
    for (int o = 0; o < out.channels; ++o) {
      for (int i = 0; i < in.channels; ++i) weight.push_back(i == o + num_features ? 1.0f : 0.0f);
    }
    model_.weights[name + ".weight"] = support::FloatTensor({out.channels, in.channels}, weight);
    return Named(out, [in, num_features](const Values& values) {
      Rows rows = values.at(in.node);
      for (auto& [site, row] : rows) row.erase(row.begin(), row.begin() + num_features);
      return rows;
    });
  }

  const int dimension_;
  const RuleMaker rules_;
  std::mt19937 random_;
  Layer input_;
  support::TestModel model_;
  int num_nodes_ = 0;
  std::string last_;
  std::vector<std::pair<std::string, Loop>> loops_;
};

}  // namespace voxserve::sparseconvnet
