#pragma once

// Builds random networks of convolutions and pools in two forms: as a model file for the engine, and as functions that
// compute each layer by its definition (conv_reference.h). Tests compare the results of both forms. A site is the
// integer coordinate of a row of a sparse tensor.

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/engine/executor/conv_reference.h"
#include "tests/support/model_folder.h"

namespace voxserve {

// The shape of a convolution or pool as a model file gives it, with one number per axis. Axes past the dimension are
// ignored.
struct KernelShape {
  Place kernel_size = {3, 3, 3, 3};
  Place stride = {1, 1, 1, 1};
  Place dilation = {1, 1, 1, 1};
  std::optional<Place> padding = std::nullopt;  // nullopt: centred
  bool is_cross = false;
  std::vector<Place> offsets = {};  // used instead of kernel_size if not empty
  int groups = 1;
  // If set, the node is a pool: its kernel is a box, and it has as many output channels as input channels.
  std::optional<kernels::PoolReduce> reduce = std::nullopt;
};

class ConvNetwork {
 public:
  static constexpr const char* kFields[] = {"x", "y", "z", "t"};

  // `shape` is the shape of the voxels' grid, which begins at 0. Without a shape, voxels may lie anywhere.
  ConvNetwork(int dimension, int channels, std::optional<Place> shape, uint32_t seed)
      : dimension_(dimension), shape_(shape), random_(seed) {
    channels_["voxels"] = channels;
    std::vector<std::string> fields, features;
    for (int axis = 0; axis < dimension; ++axis) fields.push_back(absl::StrCat("\"", kFields[axis], "\""));
    for (int c = 0; c < channels; ++c) features.push_back(absl::StrCat("features { name: \"f", c, "\" }"));
    const std::string range =
        shape ? absl::StrCat("origin: ORIGIN_RANGE range_min: ", List({0, 0, 0, 0}), " range_max: ", List(*shape))
              : "origin: ORIGIN_ZERO";
    model_.graph =
        absl::StrCat("dimension: ", dimension, "\nnodes { name: \"voxels\" voxelize { voxel_size: ", List({1, 1, 1, 1}),
                     " rounding: ROUNDING_FLOOR ", range, " reduce: REDUCE_FIRST axes: [", absl::StrJoin(fields, ", "),
                     "] ", absl::StrJoin(features, " "), " } }\n");
  }

  int dimension() const { return dimension_; }
  int Channels(const std::string& node) const { return channels_.at(node); }

  // Each of the following methods adds a node with random weights and returns the node's name. The functions ...Sites
  // of conv_reference.h define the output sites. Onto and TransposedOnto have the sites of node `sites`.
  std::string Submanifold(const std::string& input, const KernelShape& shape, int out_channels) {
    return Add("KIND_SUBMANIFOLD", "", input, "", shape, out_channels,
               [](const auto& conv, const Rows& in, const auto&) { return Convolve(conv, in, SitesOf(in)); });
  }
  std::string Floor(const std::string& input, const KernelShape& shape, int out_channels) {
    return Add("KIND_STRIDED", "rule: RULE_FLOOR", input, "", shape, out_channels,
               [](const auto& conv, const Rows& in, const auto&) { return Convolve(conv, in, FloorSites(conv, in)); });
  }
  // The shape must have a padding, and the network must have a grid shape. The same holds for Transposed.
  std::string Padded(const std::string& input, const KernelShape& shape, int out_channels) {
    const Place out = PaddedShape(shapes_.count(input) > 0 ? shapes_.at(input) : *shape_, shape);
    const std::string name = Add("KIND_STRIDED", "rule: RULE_PADDED", input, "", shape, out_channels,
                                 [out](const auto& conv, const Rows& in, const auto&) {
                                   return Convolve(conv, in, PaddedSites(conv, in, out));
                                 });
    shapes_[name] = out;
    return name;
  }
  // bounds: the lowest and highest coordinate of stride * output site. nullopt: the lowest is the smallest input
  // coordinate of each axis, and there is no highest.
  std::string Expand(const std::string& input, const KernelShape& shape, int out_channels,
                     const std::optional<std::pair<Place, Place>>& bounds) {
    std::optional<Place> lower, upper;
    if (bounds) std::tie(lower, upper) = *bounds;
    return Add("KIND_STRIDED",
               absl::StrCat("rule: RULE_EXPAND",
                            bounds ? absl::StrCat(" lower_bound: ", List(*lower), " upper_bound: ", List(*upper)) : ""),
               input, "", shape, out_channels,
               [size = shape.kernel_size, lower = lower, upper = upper](const auto& conv, const Rows& in, const auto&) {
                 return Convolve(conv, in, ExpandSites(conv, in, size, lower, upper));
               });
  }
  // more: the output padding, which enlarges the output's shape. A pool ignores it in the model file, so it must be 0.
  std::string Transposed(const std::string& input, const KernelShape& shape, int out_channels, const Place& more) {
    const Place out = TransposedShape(shapes_.count(input) > 0 ? shapes_.at(input) : *shape_, shape, more);
    const std::string padding =
        shape.reduce ? "" : absl::StrCat("output_padding: ", List(more));  // a pool has no output_padding
    const std::string name = Add("KIND_TRANSPOSED", padding, input, "", shape, out_channels,
                                 [out](const auto& conv, const Rows& in, const auto&) {
                                   return ConvolveTransposed(conv, in, TransposedSites(conv, in, out));
                                 });
    shapes_[name] = out;
    return name;
  }
  std::string Generative(const std::string& input, const KernelShape& shape, int out_channels) {
    return Add("KIND_GENERATIVE", "", input, "", shape, out_channels,
               [](const auto& conv, const Rows& in, const auto&) {
                 return ConvolveTransposed(conv, in, TransposedSites(conv, in, std::nullopt));
               });
  }
  std::string Onto(const std::string& input, const std::string& sites, const KernelShape& shape, int out_channels) {
    return Add("KIND_STRIDED", absl::StrCat("sites_of: \"", sites, "\""), input, sites, shape, out_channels,
               [](const auto& conv, const Rows& in, const auto& of) { return Convolve(conv, in, of); });
  }
  std::string TransposedOnto(const std::string& input, const std::string& sites, const KernelShape& shape,
                             int out_channels) {
    return Add("KIND_TRANSPOSED", absl::StrCat("sites_of: \"", sites, "\""), input, sites, shape, out_channels,
               [](const auto& conv, const Rows& in, const auto& of) { return ConvolveTransposed(conv, in, of); });
  }
  // Adds the inverse convolution of node `paired`, which must have the same kernel. Its output sites are the sites of
  // node `of`, which must be the input of `paired`.
  std::string Inverse(const std::string& input, const std::string& paired, const std::string& of, KernelShape shape,
                      int out_channels, int groups) {
    shape.groups = groups;
    const ReferenceConv conv = Reference(shape, Channels(input), out_channels);
    return AddNode(absl::StrCat("kind: KIND_INVERSE paired_with: \"", paired, "\"",
                                groups > 1 ? absl::StrCat(" groups: ", groups) : ""),
                   conv, input, of,
                   [](const auto& c, const Rows& in, const auto& sites) { return ConvolveTransposed(c, in, sites); });
  }

  // Returns the shape with enough padding for the kernel to fit into the input, as Padded requires.
  KernelShape Fitting(const std::string& input, KernelShape shape) const {
    const Place& in = shapes_.count(input) > 0 ? shapes_.at(input) : *shape_;
    for (size_t a = 0; a < static_cast<size_t>(dimension_); ++a) {
      const int32_t missing = shape.dilation[a] * (shape.kernel_size[a] - 1) + 1 - in[a] - 2 * (*shape.padding)[a];
      if (missing > 0) (*shape.padding)[a] += (missing + 1) / 2;
    }
    return shape;
  }

  // UnionAdd adds a node that sums the inputs over the union of their sites, UnionConcat one that concatenates their
  // channels. An input counts as 0 at a site that it does not have.
  std::string UnionAdd(const std::vector<std::string>& inputs) { return Unite("add", inputs, Channels(inputs[0])); }
  std::string UnionConcat(const std::vector<std::string>& inputs) {
    int channels = 0;
    for (const std::string& input : inputs) channels += Channels(input);
    return Unite("concat", inputs, channels);
  }
  // Adds a crop, which keeps the sites with lower <= site < upper.
  std::string Crop(const std::string& input, const Place& lower, const Place& upper) {
    return AddCombination(absl::StrCat("crop { lower_bound: ", List(lower), " upper_bound: ", List(upper), " }"),
                          {input}, Channels(input), [=, d = static_cast<size_t>(dimension_)](const auto& in) {
                            Rows out;
                            for (const auto& [site, row] : *in[0]) {
                              bool stays = true;
                              for (size_t a = 0; a < d; ++a) stays &= site[a] >= lower[a] && site[a] < upper[a];
                              if (stays) out[site] = row;
                            }
                            return out;
                          });
  }
  // Adds a prune, which keeps the sites of `input` at which channel 0 of node `scores` is above the threshold. Both
  // nodes must have the same sites.
  std::string Prune(const std::string& input, const std::string& scores, float threshold) {
    return AddCombination(absl::StrCat("prune { threshold: ", threshold, " }"), {input, scores}, Channels(input),
                          [=](const auto& in) {
                            Rows out;
                            for (const auto& [site, row] : *in[0]) {
                              if (in[1]->at(site)[0] > double{threshold}) out[site] = row;
                            }
                            return out;
                          });
  }

  // Makes all later weights multiples of 1/2 from -1 to 1. Small sums of such numbers are exact in every type.
  void UseHalves() { uses_halves_ = true; }

  // Ends the network and returns the model file. The outputs are the scores and labels of node `head`, which must be on
  // the voxels' sites.
  support::TestModel Finish(const std::string& head) {
    head_ = head;
    absl::StrAppend(&model_.graph, "nodes { name: \"best\" inputs: \"", head, "\" argmax {} }\n",
                    "nodes { name: \"labels\" inputs: [\"best\", \"voxels\"] voxel_to_point {} }\n",
                    "nodes { name: \"scores\" inputs: [\"", head, "\", \"voxels\"] voxel_to_point {} }\n",
                    "outputs { kind: KIND_LABELS node: \"labels\" } outputs { kind: KIND_SCORES node: \"scores\" }\n");
    return model_;
  }

  // Computes the head's rows for the voxels of one sample.
  Rows Evaluate(const Rows& voxels) const {
    std::map<std::string, Rows> values = {{"voxels", voxels}};
    for (const Node& node : nodes_) {
      if (node.combine) {
        std::vector<const Rows*> inputs;
        for (const std::string& input : node.inputs) inputs.push_back(&values.at(input));
        values[node.name] = node.combine(inputs);
        continue;
      }
      const std::set<Place> sites = node.sites.empty() ? std::set<Place>() : SitesOf(values.at(node.sites));
      values[node.name] = node.compute(node.conv, values.at(node.input), sites);
    }
    return values.at(head_);
  }

 private:
  struct Node {
    std::string name, input, sites;
    ReferenceConv conv;
    std::function<Rows(const ReferenceConv&, const Rows&, const std::set<Place>&)> compute;
    // Inputs of a node that is not a convolution.
    std::vector<std::string> inputs = {};
    std::function<Rows(const std::vector<const Rows*>&)> combine = {};
  };

  static const char* NameOf(kernels::PoolReduce reduce) {
    return reduce == kernels::PoolReduce::kMax   ? "REDUCE_MAX"
           : reduce == kernels::PoolReduce::kSum ? "REDUCE_SUM"
                                                 : "REDUCE_AVERAGE";
  }

  std::string List(const Place& place) const {
    return absl::StrCat("[", absl::StrJoin(place.begin(), place.begin() + dimension_, ", "), "]");
  }

  Place PaddedShape(const Place& in, const KernelShape& s) const {
    Place out = {1, 1, 1, 1};
    for (size_t a = 0; a < static_cast<size_t>(dimension_); ++a) {
      out[a] = (in[a] + 2 * (*s.padding)[a] - s.dilation[a] * (s.kernel_size[a] - 1) - 1) / s.stride[a] + 1;
    }
    return out;
  }
  Place TransposedShape(const Place& in, const KernelShape& s, const Place& more) const {
    Place out = {1, 1, 1, 1};
    for (size_t a = 0; a < static_cast<size_t>(dimension_); ++a) {
      out[a] = (in[a] - 1) * s.stride[a] - 2 * (*s.padding)[a] + s.dilation[a] * (s.kernel_size[a] - 1) + 1 + more[a];
    }
    return out;
  }

  ReferenceConv Reference(const KernelShape& s, int in_channels, int out_channels) {
    ReferenceConv conv{.dimension = dimension_,
                       .stride = s.stride,
                       .groups = s.groups,
                       .out_channels = s.reduce ? in_channels : out_channels,
                       .reduce = s.reduce};
    if (!s.offsets.empty()) {
      for (Place offset : s.offsets) {
        for (size_t axis = 0; axis < 4; ++axis) offset[axis] *= s.dilation[axis];
        conv.deltas.push_back(offset);
      }
    } else if (s.is_cross) {
      conv.deltas = {{0, 0, 0, 0}};
      for (size_t axis = 0; axis < static_cast<size_t>(dimension_); ++axis) {
        for (int32_t at = -(s.kernel_size[axis] / 2); at <= s.kernel_size[axis] / 2; ++at) {
          if (at == 0) continue;
          conv.deltas.push_back({0, 0, 0, 0});
          conv.deltas.back()[axis] = at * s.dilation[axis];
        }
      }
    } else {
      conv.deltas = BoxDeltas(dimension_, s.kernel_size, s.dilation,
                              s.padding.value_or(CentredPadding(s.kernel_size, s.dilation)));
    }
    if (conv.reduce) return conv;
    conv.weight.resize(conv.deltas.size() * static_cast<size_t>(in_channels / s.groups * out_channels));
    std::uniform_real_distribution<float> unit(-1, 1);
    for (float& value : conv.weight) value = uses_halves_ ? std::round(2 * unit(random_)) / 2 : unit(random_);
    return conv;
  }

  std::string Unite(const std::string& op, const std::vector<std::string>& inputs, int channels) {
    std::vector<size_t> columns;
    for (const std::string& input : inputs) columns.push_back(static_cast<size_t>(Channels(input)));
    return AddCombination(op + " { sites: SITES_UNION }", inputs, channels, [=](const auto& in) {
      Rows out;
      size_t begin = 0;
      for (size_t i = 0; i < in.size(); ++i) {
        for (const auto& [site, row] : *in[i]) {
          std::vector<double>& united = out[site];
          united.resize(static_cast<size_t>(channels));
          for (size_t c = 0; c < row.size(); ++c) united[begin + c] += row[c];
        }
        if (op == "concat") begin += columns[i];
      }
      return out;
    });
  }

  template <typename Combination>
  std::string AddCombination(const std::string& op, const std::vector<std::string>& inputs, int channels,
                             Combination combine) {
    const std::string name = absl::StrCat("node", nodes_.size());
    absl::StrAppend(&model_.graph, "nodes { name: \"", name, "\" inputs: [\"", absl::StrJoin(inputs, "\", \""), "\"] ",
                    op, " }\n");
    channels_[name] = channels;
    nodes_.push_back(
        {.name = name, .input = {}, .sites = {}, .conv = {}, .compute = {}, .inputs = inputs, .combine = combine});
    return name;
  }

  template <typename Computation>
  std::string Add(const std::string& kind, const std::string& more, const std::string& input, const std::string& sites,
                  const KernelShape& s, int out_channels, Computation compute) {
    std::string text =
        absl::StrCat("kind: ", kind, " ", more, " stride: ", List(s.stride), " dilation: ", List(s.dilation),
                     s.groups > 1 ? absl::StrCat(" groups: ", s.groups) : "");
    if (s.offsets.empty()) {
      absl::StrAppend(&text, " kernel_size: ", List(s.kernel_size),
                      s.is_cross ? " kernel_shape: KERNEL_SHAPE_CROSS" : "");
    } else {
      std::vector<std::string> values;
      for (const Place& offset : s.offsets) {
        values.push_back(absl::StrJoin(offset.begin(), offset.begin() + dimension_, ", "));
      }
      absl::StrAppend(&text, " offsets: [", absl::StrJoin(values, ", "), "]");
    }
    if (s.padding) absl::StrAppend(&text, " padding: ", List(*s.padding));
    return AddNode(text, Reference(s, Channels(input), out_channels), input, sites, compute);
  }

  template <typename Computation>
  std::string AddNode(const std::string& text, const ReferenceConv& conv, const std::string& input,
                      const std::string& sites, Computation compute) {
    const std::string name = absl::StrCat(conv.reduce ? "pool" : "conv", nodes_.size());
    absl::StrAppend(&model_.graph, "nodes { name: \"", name, "\" inputs: \"", input, "\" ");
    if (conv.reduce) {
      absl::StrAppend(&model_.graph, "pool { reduce: ", NameOf(*conv.reduce), " ", text, " } }\n");
    } else {
      absl::StrAppend(&model_.graph, "sparse_conv { ", text, " out_channels: ", conv.out_channels, " } }\n");
      model_.weights[name + ".weight"] = support::FloatTensor(
          {static_cast<int64_t>(conv.deltas.size()), Channels(input) / conv.groups, conv.out_channels}, conv.weight);
    }
    channels_[name] = conv.out_channels;
    nodes_.push_back({.name = name, .input = input, .sites = sites, .conv = conv, .compute = compute});
    return name;
  }

  const int dimension_;
  const std::optional<Place> shape_;
  std::mt19937 random_;
  bool uses_halves_ = false;
  support::TestModel model_;
  std::vector<Node> nodes_;
  std::map<std::string, int> channels_;
  std::map<std::string, Place> shapes_;  // the output shapes of Padded and Transposed
  std::string head_;
};

}  // namespace voxserve
