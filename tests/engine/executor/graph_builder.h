#pragma once

// Builds graphs for tests, in the form that the loader returns, with random weights. A level is the set of occupied
// sites at one stride. The graphs have level 0 with the voxels, level 1 if a strided node makes it, and one more level
// for every crop, every prune and every union of different levels (engine/model/levels.h).

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/graph.h"

namespace voxserve {

using Site = std::array<int32_t, 3>;
using Values = std::map<Site, std::vector<double>>;  // rows of a tensor by site

inline constexpr int kFine = 0;                            // level 0, the voxels
inline constexpr int kCoarse = 1;                          // the level that Down and PoolDown make of level 0
inline constexpr kernels::Axes kShape = {7, 5, 4, 1};      // spatial shape of the voxels in 3 dimensions
inline constexpr kernels::Axes kFlatShape = {7, 5, 1, 1};  // spatial shape of the voxels in 2 dimensions

// Builds one graph. Methods that add a node return its index; node 0 is the voxelization.
class GraphBuilder {
 public:
  // dimension: 3, or 2; in 2 dimensions all sites have z = 0. rule: the rule by which Down and PoolDown make the sites
  // of level 1. shape_of_voxels: the voxels' spatial shape; by default kShape, in 2 dimensions kFlatShape.
  explicit GraphBuilder(uint32_t seed, kernels::CoordinateRule rule = kernels::CoordinateRule::kFloor,
                        int dimension = 3, const std::optional<kernels::Axes>& shape_of_voxels = std::nullopt)
      : random_(seed), rule_(rule) {
    const kernels::Axes shape = shape_of_voxels.value_or(dimension == 2 ? kFlatShape : kShape);
    graph_.dimension = dimension;
    graph_.levels = LevelTable(shape);
    VoxelizeOp op;
    op.origin = kernels::VoxelOrigin::kRange;
    op.has_range = true;
    for (size_t axis = 0; axis < 3; ++axis) op.range_max[axis] = static_cast<float>(shape[axis]);
    op.grid_shape = shape;
    op.voxel_size = {1, 1, 1, 1};
    op.axes = {"x", "y"};
    if (dimension == 3) op.axes.push_back("z");
    for (const char* name : {"x", "y", "z", "f"}) op.features.push_back({.name = name, .unit = "1"});
    Add("voxels", {}, op, kFine, 4);
  }

  int Submanifold(int input, int out_channels, bool bias) {
    SparseConvOp op;
    op.sites.geometry = Cube(3, 1, 1);
    op.rulebook = graph_.levels.Rulebook(Level(input), Level(input), op.geometry());
    return AddConv(input, std::move(op), out_channels, bias, Level(input));
  }
  int Down(int input, int out_channels) {
    SparseConvOp op;
    op.kind = SparseConvOp::Kind::kStrided;
    op.sites.rule = rule_;
    op.sites.geometry = rule_ == kernels::CoordinateRule::kFloor ? Cube(2, 2, 0) : Cube(3, 2, 1);
    const int level = graph_.levels.Apply(kFine, op.sites);
    op.rulebook = graph_.levels.Rulebook(kFine, level, op.geometry());
    return AddConv(input, std::move(op), out_channels, false, level);
  }
  // Adds the inverse convolution of `down`, a convolution or pool.
  int Up(int input, int down, int out_channels) {
    const GraphOp& partner = graph_.nodes[static_cast<size_t>(down)].op;
    const auto* const conv = std::get_if<SparseConvOp>(&partner);
    SparseConvOp op{.kind = SparseConvOp::Kind::kInverse,
                    .sites = conv ? conv->sites : std::get<PoolOp>(partner).sites,
                    .paired_with = down,
                    .rulebook = conv ? conv->rulebook : std::get<PoolOp>(partner).rulebook};
    return AddConv(input, std::move(op), out_channels, true, kFine);
  }
  int GlobalPool(int input, kernels::PoolReduce reduce) {
    return Add("global", {input}, GlobalPoolOp{reduce}, kSampleLevel, Channels(input));
  }
  int GeneralisedMean(int input, float exponent, float epsilon) {
    return Add("gem", {input},
               GlobalPoolOp{.reduce = kernels::PoolReduce::kAverage, .exponent = exponent, .epsilon = epsilon},
               kSampleLevel, Channels(input));
  }
  int Multiply(int a, int b) { return Elementwise(a, b, kernels::Elementwise::kMultiply); }
  int Elementwise(int a, int b, kernels::Elementwise function, float epsilon = 0) {
    return Add("elementwise", {a, b}, ElementwiseOp{function, epsilon}, Level(a), std::max(Channels(a), Channels(b)));
  }
  // `input` is on sites.
  int SiteCoordinates(int input, const kernels::SiteCoordinatesParams& parameters) {
    return Add("coordinates", {input}, SiteCoordinatesOp{parameters}, Level(input), graph_.dimension);
  }
  int RowNorm(int input, kernels::RowNorm kind, float epsilon = 0, bool affine = false) {
    const int channels = Channels(input);
    return Add("row_norm", {input},
               RowNormOp{.kind = kind,
                         .epsilon = epsilon,
                         .weight = affine ? RandomTensor({channels}) : nullptr,
                         .bias = affine ? RandomTensor({channels}) : nullptr},
               Level(input), kernels::IsReduction(kind) ? 1 : channels);
  }
  int PRelu(int input, int num_slopes) {
    return Add("prelu", {input}, PReluOp{RandomTensor({num_slopes})}, Level(input), Channels(input));
  }
  int Embedding(int input, int channel, int num_rows, int channels) {
    return Add("embedding", {input}, EmbeddingOp{channel, RandomTensor({num_rows, channels})}, Level(input), channels);
  }
  // Adds a linear layer that shares the tensors of node `linear`.
  int LinearWithWeightsOf(int input, int linear) {
    return Add("shared", {input}, std::get<LinearOp>(graph_.nodes[static_cast<size_t>(linear)].op), Level(input),
               Channels(linear));
  }
  int Broadcast(int sites, int samples, BroadcastOp::Function function) {
    const bool is_concat = function == BroadcastOp::Function::kConcat;
    return Add("broadcast", {sites, samples}, BroadcastOp{function}, Level(sites),
               Channels(sites) + (is_concat ? Channels(samples) : 0));
  }
  int SampleRows(int num_rows, int channels) {
    const int node = Add("sample_rows", {}, SampleRowsOp{RandomTensor({num_rows, channels})}, kSampleLevel, channels);
    if (num_rows > 1) graph_.nodes.back().grid = GridShape{.dimension = 1, .size = {num_rows, 1, 1, 1}};
    return node;
  }
  int Attention(int queries, int keys, int values, int num_heads, float scale) {
    return Add("attention", {queries, keys, values}, AttentionOp{.num_heads = num_heads, .scale = scale},
               Level(queries), Channels(values));
  }
  // Adds groups of the sites of `input`. halvings: of the voxels' depth; -1: the depth is that of the level itself.
  int Groups(int input, kernels::Curve curve, int halvings, int size, kernels::GroupTail tail) {
    SiteOrderSpec order{.level = Level(input), .curve = curve};
    if (kernels::IsHilbert(curve)) {
      order.depth_level = halvings < 0 ? Level(input) : kFine;
      order.halvings = std::max(halvings, 0);
    }
    return Add("groups", {input}, GroupsOp{.order = order, .size = size, .tail = tail}, Level(input), 1);
  }
  // Adds groups of the sites of `input` by windows.
  int WindowGroups(int input, const kernels::SiteWindows& windows, int size, kernels::GroupTail tail) {
    SiteOrderSpec order{.level = Level(input), .windows = windows};
    if (tail == kernels::GroupTail::kSpread) order.spread_size = size;
    return Add("groups", {input}, GroupsOp{.order = order, .size = size, .tail = tail}, Level(input), 1);
  }
  int GroupAttention(int queries, int keys, int values, int groups, int num_heads, float scale) {
    return Add("attention", {queries, keys, values},
               AttentionOp{.num_heads = num_heads, .scale = scale, .groups_of = groups}, Level(queries),
               Channels(values));
  }
  // positions: a node on the same sites, or -1 for the sites' coordinates.
  int Rotary(int input, int num_heads, float base, int positions = -1) {
    std::vector<int> inputs = {input};
    if (positions >= 0) inputs.push_back(positions);
    return Add("rotary", std::move(inputs), RotaryOp{num_heads, base}, Level(input), Channels(input));
  }
  int SitePosition(const SitePositionOp& op) { return Add("position", {0}, op, kFine, graph_.dimension); }
  // If num_groups is 0, the norm is an instance norm.
  int SampleNorm(int input, int num_groups, bool affine) {
    const int channels = Channels(input);
    return Add("sample_norm", {input},
               SampleNormOp{.num_groups = num_groups == 0 ? channels : num_groups,
                            .epsilon = 1e-3f,
                            .weight = affine ? RandomTensor({channels}) : nullptr,
                            .bias = affine ? RandomTensor({channels}) : nullptr},
               Level(input), channels);
  }
  // Adds a pool with the same output sites as Down.
  int PoolDown(int input, kernels::PoolReduce reduce) {
    PoolOp op{.reduce = reduce, .kind = SparseConvOp::Kind::kStrided};
    op.sites.rule = rule_;
    op.sites.geometry = rule_ == kernels::CoordinateRule::kFloor ? Cube(2, 2, 0) : Cube(3, 2, 1);
    const int level = graph_.levels.Apply(kFine, op.sites);
    op.rulebook = graph_.levels.Rulebook(kFine, level, op.sites.geometry);
    return Add("pool", {input}, op, level, Channels(input));
  }
  int PoolSubmanifold(int input, kernels::PoolReduce reduce) {
    PoolOp op{.reduce = reduce};
    op.sites.geometry = Cube(3, 1, 1);
    op.rulebook = graph_.levels.Rulebook(Level(input), Level(input), op.sites.geometry);
    return Add("pool", {input}, op, Level(input), Channels(input));
  }
  // Adds the inverse pool of `down`, a pool or convolution.
  int Unpool(int input, int down, kernels::PoolReduce reduce) {
    const GraphOp& partner = graph_.nodes[static_cast<size_t>(down)].op;
    const auto* const conv = std::get_if<SparseConvOp>(&partner);
    return Add("unpool", {input},
               PoolOp{.reduce = reduce,
                      .kind = SparseConvOp::Kind::kInverse,
                      .sites = conv ? conv->sites : std::get<PoolOp>(partner).sites,
                      .paired_with = down,
                      .rulebook = conv ? conv->rulebook : std::get<PoolOp>(partner).rulebook},
               kFine, Channels(input));
  }
  // Adds a node that copies the rows to a dense grid with the spatial shape of the input's level.
  int ToDense(int input) {
    const int node = Add("to_dense", {input}, ToDenseOp(), kSampleLevel, Channels(input));
    graph_.nodes.back().grid = GridShape{.dimension = graph_.dimension, .size = ShapeOf(Level(input))};
    return node;
  }
  // Adds a node that makes a bird's-eye-view image [y, x]. A cell's channels are those of all z: channel c of height z
  // is channel c * depth + z.
  int ToBev(int input) {
    const kernels::Axes shape = ShapeOf(Level(input));
    const int node = Add("to_bev", {input}, ToDenseOp{.is_from_above = true}, kSampleLevel, Channels(input) * shape[2]);
    graph_.nodes.back().grid = GridShape{.dimension = 2, .size = {shape[1], shape[0], 1, 1}};
    return node;
  }
  int FromDense(int input, int sites_of) {
    return Add("from_dense", {input}, FromDenseOp{.sites_of = sites_of}, Level(sites_of), Channels(input));
  }
  // Adds a convolution of an image.
  int Conv2d(int input, const kernels::Conv2dGeometry& geometry, int out_channels, bool bias) {
    const int in_channels = Channels(input);
    const kernels::Axes in_size = graph_.nodes[static_cast<size_t>(input)].grid->size;
    const std::array<int64_t, 2> matrix = geometry.is_transposed
                                              ? std::array<int64_t, 2>{in_channels, out_channels}
                                              : std::array<int64_t, 2>{out_channels, in_channels / geometry.groups};
    const int node =
        Add("conv2d", {input},
            Conv2dOp{.geometry = geometry,
                     .in_channels = in_channels,
                     .out_channels = out_channels,
                     .weight = RandomTensor({matrix[0], matrix[1], geometry.kernel_size[0], geometry.kernel_size[1]}),
                     .bias = bias ? RandomTensor({out_channels}) : nullptr},
            kSampleLevel, out_channels);
    graph_.nodes.back().grid = GridShape{.dimension = 2,
                                         .size = {static_cast<int32_t>(geometry.OutSize(0, in_size[0])),
                                                  static_cast<int32_t>(geometry.OutSize(1, in_size[1])), 1, 1}};
    return node;
  }
  int Norm(int input) {
    const int channels = Channels(input);
    std::vector<float> variance(static_cast<size_t>(channels));
    for (float& v : variance) v = std::uniform_real_distribution<float>(0.5f, 2.0f)(random_);
    return Add("norm", {input},
               BatchNormOp{.epsilon = 1e-3f,
                           .weight = RandomTensor({channels}),
                           .bias = RandomTensor({channels}),
                           .running_mean = RandomTensor({channels}),
                           .running_var = std::make_shared<HostTensor>(HostTensor{{channels}, variance})},
               Level(input), channels);
  }
  int Relu(int input) { return Activation(input, kernels::ActivationFunction::kRelu); }
  int Activation(int input, const kernels::Activation& activation) {
    return Add("activation", {input}, ActivationOp{activation}, Level(input), Channels(input));
  }
  int Sum(int a, int b) { return Add("add", {a, b}, AddOp(), Level(a), Channels(a)); }
  int Concat(const std::vector<int>& inputs) {
    int channels = 0;
    for (const int input : inputs) channels += Channels(input);
    return Add("concat", inputs, ConcatOp(), Level(inputs[0]), channels);
  }
  // UnionSum and UnionConcat have the union of their inputs' sites. If all inputs are on one level, the results are
  // those of Sum and Concat.
  int UnionSum(int a, int b) {
    AddOp op;
    const int level = UnionLevel({a, b}, &op.rulebooks);
    return Add("union_add", {a, b}, op, level, Channels(a));
  }
  int UnionConcat(const std::vector<int>& inputs) {
    ConcatOp op;
    const int level = UnionLevel(inputs, &op.rulebooks);
    int channels = 0;
    for (const int input : inputs) channels += Channels(input);
    return Add("union_concat", inputs, op, level, channels);
  }
  int Crop(int input, const kernels::Axes& lower, const kernels::Axes& upper) {
    const int level = graph_.levels.Filter(Level(input), {.lower = lower, .upper = upper});
    return Add("crop", {input}, CropOp{SameSites(input, level)}, level, Channels(input));
  }
  // FinishOutputs removes no nodes from a graph with prunes, since its levels refer to score nodes by index.
  int Prune(int input, int scores, float threshold) {
    has_prunes_ = true;
    const int level = graph_.levels.Filter(Level(input), {.score_node = scores, .threshold = threshold});
    return Add("prune", {input, scores}, PruneOp{SameSites(input, level)}, level, Channels(input));
  }
  // Adds a convolution whose output has the sites of node `sites`. The levels of both nodes must have the same unit
  // (the same distance between neighbouring sites).
  int Onto(int input, int sites, int out_channels) {
    SparseConvOp op;
    op.kind = SparseConvOp::Kind::kStrided;
    op.sites_of = sites;
    op.sites.geometry = Cube(3, 1, 1);
    op.rulebook = graph_.levels.Rulebook(Level(input), Level(sites), op.geometry());
    return AddConv(input, std::move(op), out_channels, true, Level(sites));
  }
  int Linear(int input, int out_channels, bool bias) {
    const int in_channels = Channels(input);
    return Add("linear", {input},
               LinearOp{.in_channels = in_channels,
                        .out_channels = out_channels,
                        .weight = RandomTensor({out_channels, in_channels}),
                        .bias = bias ? RandomTensor({out_channels}) : nullptr},
               Level(input), out_channels);
  }

  // The methods below add operators on rows of points.
  int PointFeatures() { return Add("point_features", {0}, PointFeaturesOp(), kPointLevel, Channels(0)); }
  int VoxelToPoint(int input) {
    return Add("voxel_to_point", {input, 0}, VoxelToPointOp(), kPointLevel, Channels(input));
  }
  // positions: -1 to interpolate at the points, or a node to interpolate at its sites.
  int Devoxelize(int input, int positions = -1) {
    return Add("devoxelize", {input, positions < 0 ? 0 : positions}, DevoxelizeOp(),
               positions < 0 ? kPointLevel : Level(positions), Channels(input));
  }
  // Adds a node that pools rows into the sites that contain them. input: a node on points, or a node on sites, whose
  // sites are then pooled like points. sites_of: the node with the output's sites, or -1 for the voxels.
  int PointToVoxel(int input, kernels::PoolReduce reduce, int sites_of = -1) {
    std::vector<int> inputs = {input};
    if (Level(input) == kPointLevel) inputs.push_back(0);
    return Add("point_to_voxel", std::move(inputs), PointToVoxelOp{.reduce = reduce, .sites_of = sites_of},
               sites_of < 0 ? kFine : Level(sites_of), Channels(input));
  }
  // Makes the voxelization round down. Without this call it rounds half to even.
  void Floor() { std::get<VoxelizeOp>(graph_.nodes[0].op).rounding = kernels::VoxelRounding::kFloor; }

  // Ends the graph. Its outputs are the scores and labels of `head`, which must be on the fine level or on points.
  Graph Finish(int head) {
    AddScores(head);
    AddLabels(head);
    return FinishOutputs();
  }
  void AddScores(int head) { graph_.scores_output = Level(head) == kPointLevel ? head : VoxelToPoint(head); }
  void AddLabels(int head) {
    graph_.num_classes = Channels(head);
    const int argmax = Add("argmax", {head}, ArgmaxOp{.num_classes = Channels(head)}, Level(head), 1);
    graph_.nodes.back().is_labels = true;
    graph_.labels_output = Level(head) == kPointLevel ? argmax : VoxelToPoint(argmax);
    graph_.nodes.back().is_labels = true;
  }
  // Ends the graph with one head for labels and one for scores, of five classes. Both heads read `trunk` if
  // reads_trunk_alone is true. Otherwise the head for labels reads `other`.
  Graph FinishWithTwoHeads(int trunk, int other, bool reads_trunk_alone) {
    if (reads_trunk_alone) {
      AddLabels(Linear(trunk, 5, true));
      AddScores(Linear(Relu(Linear(trunk, 7, true)), 5, true));
    } else {
      AddScores(Linear(trunk, 5, true));
      AddLabels(Linear(Norm(other), 5, true));
    }
    return FinishOutputs();
  }
  // Ends the graph. Removes the nodes that nothing reads, unless the graph has prunes.
  Graph FinishOutputs() {
    if (!has_prunes_) RemoveUnread();
    return graph_;
  }

  // Adds a select on an image of logits. parameters: peak_kernel, border, classes_without_test and k.
  int Select(int logits, kernels::SelectPeaksParams parameters) {
    parameters.num_rows = Grid(logits).size[0];
    parameters.num_columns = Grid(logits).size[1];
    parameters.num_classes = Channels(logits);
    const int node = Add("select", {logits}, SelectOp{parameters}, kSampleLevel, kernels::kSelectionColumns);
    graph_.nodes.back().is_selection = true;
    graph_.nodes.back().grid = std::nullopt;
    if (parameters.k > 1) graph_.nodes.back().grid = GridShape{.dimension = 1, .size = {parameters.k, 1, 1, 1}};
    return node;
  }
  // image: the node that is read, with kFeatures alone.
  int Gather(kernels::GatherOf of, int select, int image = -1) {
    const bool reads_image = of == kernels::GatherOf::kFeatures;
    const int node = Add("gather", reads_image ? std::vector<int>{image, select} : std::vector<int>{select},
                         GatherOp{of}, kSampleLevel,
                         reads_image                          ? Channels(image)
                         : of == kernels::GatherOf::kPosition ? 2
                                                              : 1);
    graph_.nodes.back().grid = graph_.nodes[static_cast<size_t>(select)].grid;
    return node;
  }
  // Adds an image of the size of another node's.
  int Constant(int image, int channels) {
    const kernels::Axes size = Grid(image).size;
    const int node =
        Add("constant", {}, SampleRowsOp{RandomTensor({size[0], size[1], channels})}, kSampleLevel, channels);
    graph_.nodes.back().grid = Grid(image);
    return node;
  }
  // rows: heatmap, center, height, dim, rot and, for boxes with velocities, vel. Fills in k and the classes' number.
  int QueryDecode(int select, const std::vector<int>& rows, kernels::QueryDecodeParams head) {
    const auto& selected = std::get<SelectOp>(graph_.nodes[static_cast<size_t>(select)].op).parameters;
    head.k = selected.k;
    head.num_classes = selected.num_classes;
    std::vector<int> inputs = {select};
    inputs.insert(inputs.end(), rows.begin(), rows.end());
    return AddBoxes("query_decode", inputs, QueryDecodeOp{.head = head, .has_velocity = rows.size() > 5},
                    head.max_boxes);
  }

  // CenterHead and AnchorHead add a decoder that makes boxes of `images`, which must all have the same size. They fill
  // in the head's num_rows and num_columns. AnchorHead also fills in range_max, the extent of the voxels' grid.
  // has_iou: the last image has IoUs.
  int CenterHead(const std::vector<int>& images, kernels::CenterHead head, bool has_iou = false) {
    head.num_rows = Grid(images[0]).size[0];
    head.num_columns = Grid(images[0]).size[1];
    const bool has_velocity = images.size() > (has_iou ? 6 : 5);
    return AddBoxes("center_head", images,
                    CenterHeadDecodeOp{.head = head, .has_velocity = has_velocity, .has_iou = has_iou}, head.max_boxes);
  }
  int AnchorHead(const std::vector<int>& images, kernels::AnchorHeadParams head) {
    head.num_rows = Grid(images[0]).size[0];
    head.num_columns = Grid(images[0]).size[1];
    head.range_max = {static_cast<float>(kShape[0]), static_cast<float>(kShape[1])};
    return AddBoxes("anchor_head", images, AnchorHeadDecodeOp{.head = head}, head.max_boxes);
  }
  int Nms(const std::vector<int>& boxes, const NmsOp& op) {
    int max_boxes = 0;
    for (const int input : boxes) {
      const int rows = graph_.nodes[static_cast<size_t>(input)].max_boxes;
      const auto kept = [&](int most_in, int most_out) {
        return std::min(most_in == 0 ? rows : std::min(rows, most_in), most_out);
      };
      if (op.classes.empty()) max_boxes += kept(op.max_boxes_in, op.max_boxes_out);
      for (const kernels::NmsClass& limits : op.classes) max_boxes += kept(limits.max_boxes_in, limits.max_boxes_out);
    }
    return AddBoxes("nms", boxes, op, max_boxes);
  }
  // Ends the graph with boxes as its only output. It removes no nodes, so every node must be read.
  Graph FinishBoxes(int nms, int num_classes) {
    graph_.boxes_output = nms;
    graph_.num_classes = num_classes;
    return graph_;
  }

  int Level(int node) const { return graph_.nodes[static_cast<size_t>(node)].level; }
  const GridShape& Grid(int node) const { return *graph_.nodes[static_cast<size_t>(node)].grid; }
  int Channels(int node) const { return graph_.nodes[static_cast<size_t>(node)].channels; }
  int num_nodes() const { return static_cast<int>(graph_.nodes.size()); }

 private:
  static kernels::ConvGeometry Cube(int size, int stride, int padding) {
    return {.dimension = 3,
            .kernel_size = {size, size, size, 1},
            .stride = {stride, stride, stride, 1},
            .padding = {padding, padding, padding, 0}};
  }
  kernels::Axes ShapeOf(int level) const { return *graph_.levels.levels()[static_cast<size_t>(level)].spatial_shape; }
  int SameSites(int input, int level) { return graph_.levels.SameSiteRulebook(Level(input), level, 3); }
  // Returns the level of the union of the inputs' sites. Adds one rulebook per input, from its level to the union,
  // unless all inputs are on that level already.
  int UnionLevel(const std::vector<int>& inputs, std::vector<int>* rulebooks) {
    std::vector<int> levels;
    for (const int input : inputs) levels.push_back(Level(input));
    const int level = graph_.levels.Union(levels);
    if (std::all_of(levels.begin(), levels.end(), [level](int other) { return other == level; })) return level;
    for (const int input : inputs) rulebooks->push_back(SameSites(input, level));
    return level;
  }
  HostTensorPtr RandomTensor(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    HostTensor tensor{shape, std::vector<float>(static_cast<size_t>(count))};
    for (float& value : tensor.values) value = std::uniform_real_distribution<float>(-0.5f, 0.5f)(random_);
    return std::make_shared<HostTensor>(std::move(tensor));
  }
  int AddConv(int input, SparseConvOp op, int out_channels, bool bias, int level) {
    op.in_channels = Channels(input);
    op.out_channels = out_channels;
    op.weight = RandomTensor({op.geometry().NumOffsets(), op.in_channels, out_channels});
    if (bias) op.bias = RandomTensor({out_channels});
    return Add("conv", {input}, std::move(op), level, out_channels);
  }
  int Add(const std::string& name, std::vector<int> inputs, GraphOp op, int level, int channels) {
    GraphNode node;
    node.name = absl::StrCat(name, graph_.nodes.size());
    node.inputs = std::move(inputs);
    node.op = std::move(op);
    if (level == kSampleLevel && !node.inputs.empty())
      node.grid = graph_.nodes[static_cast<size_t>(node.inputs[0])].grid;
    node.level = level;
    node.channels = channels;
    graph_.nodes.push_back(std::move(node));
    return num_nodes() - 1;
  }
  int AddBoxes(const std::string& name, const std::vector<int>& inputs, GraphOp op, int max_boxes) {
    const int node = Add(name, inputs, std::move(op), kSampleLevel, kernels::kBoxColumns);
    graph_.nodes.back().grid = std::nullopt;
    graph_.nodes.back().max_boxes = max_boxes;
    return node;
  }
  void RemoveUnread() {
    std::vector<bool> is_read(graph_.nodes.size());
    is_read[static_cast<size_t>(graph_.scores_output)] = is_read[static_cast<size_t>(graph_.labels_output)] = true;
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      if (!is_read[i]) continue;
      for (const int input : graph_.nodes[i].inputs) is_read[static_cast<size_t>(input)] = true;
      if (const int partner = PartnerOf(graph_.nodes[i].op); partner >= 0) is_read[static_cast<size_t>(partner)] = true;
      if (const int given = SitesOf(graph_.nodes[i].op); given >= 0) is_read[static_cast<size_t>(given)] = true;
      if (const int groups = GroupsOf(graph_.nodes[i].op); groups >= 0) is_read[static_cast<size_t>(groups)] = true;
    }
    std::vector<int> moved(graph_.nodes.size(), -1);
    std::vector<GraphNode> kept;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!is_read[i]) continue;
      moved[i] = static_cast<int>(kept.size());
      GraphNode node = graph_.nodes[i];
      for (int& input : node.inputs) input = moved[static_cast<size_t>(input)];
      if (auto* conv = std::get_if<SparseConvOp>(&node.op); conv && conv->paired_with >= 0) {
        conv->paired_with = moved[static_cast<size_t>(conv->paired_with)];
      }
      if (auto* conv = std::get_if<SparseConvOp>(&node.op); conv && conv->sites_of >= 0) {
        conv->sites_of = moved[static_cast<size_t>(conv->sites_of)];
      }
      if (auto* pool = std::get_if<PoolOp>(&node.op); pool && pool->paired_with >= 0) {
        pool->paired_with = moved[static_cast<size_t>(pool->paired_with)];
      }
      if (auto* from_dense = std::get_if<FromDenseOp>(&node.op)) {
        from_dense->sites_of = moved[static_cast<size_t>(from_dense->sites_of)];
      }
      if (auto* attention = std::get_if<AttentionOp>(&node.op); attention && attention->groups_of >= 0) {
        attention->groups_of = moved[static_cast<size_t>(attention->groups_of)];
      }
      if (auto* to_voxel = std::get_if<PointToVoxelOp>(&node.op); to_voxel && to_voxel->sites_of >= 0) {
        to_voxel->sites_of = moved[static_cast<size_t>(to_voxel->sites_of)];
      }
      kept.push_back(std::move(node));
    }
    graph_.nodes = std::move(kept);
    graph_.scores_output = moved[static_cast<size_t>(graph_.scores_output)];
    graph_.labels_output = moved[static_cast<size_t>(graph_.labels_output)];
  }

  std::mt19937 random_;
  const kernels::CoordinateRule rule_;
  bool has_prunes_ = false;
  Graph graph_;
};

}  // namespace voxserve
