#pragma once

// A Graph is a network that has passed every check. model_loader makes it from model.textproto and weights.safetensors,
// and the compiler turns it into a Program.
//
// The terms of this header: a voxel of the input that holds points, or a position of a coarser or finer grid that
// follows from such voxels, is a site. A coordinate level is the set of all sites at one unit (levels.h). A sample is
// one request's cloud in a batch. A tensor has one row per site, point, sample or cell of a dense grid; the level of
// its rows says which (engine/geometry/row_level.h). proto/voxserve/model/v1/model.proto defines every operator.
//
// Everything is resolved, so readers of a Graph need no checks:
// - nodes stand in topological order (inputs have smaller indices);
// - defaults are filled in, and padding is canonical;
// - channels, coordinate levels and rulebooks are known;
// - weights are float32 in host memory, whatever type the file has;
// - every node is needed by an output, since the loader refuses others.
//
// Immutable after loading; shared by all threads.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/geometry/row_level.h"
#include "engine/geometry/site_order_spec.h"
#include "engine/model/levels.h"
#include "engine/tensor/farthest_points.h"
#include "engine/tensor/feature_warning.h"
#include "engine/tensor/output_tensor.h"
#include "kernels/boxes/anchor_head.h"
#include "kernels/boxes/center_head.h"
#include "kernels/boxes/gather_queries.h"
#include "kernels/boxes/query_decode.h"
#include "kernels/boxes/rotated_nms.h"
#include "kernels/boxes/select_peaks.h"
#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/epilogue.h"
#include "kernels/image/conv2d.h"
#include "kernels/image/sites/site_coordinates.h"
#include "kernels/points/voxel_features.h"
#include "kernels/points/voxelize.h"
#include "kernels/rows/attention/group_attention.h"
#include "kernels/rows/elementwise.h"
#include "kernels/rows/pool.h"
#include "kernels/rows/row_norm.h"

namespace voxserve {

inline constexpr int kMaxChannels = 65536;  // of any tensor
inline constexpr int kMaxClasses = 65535;   // class ids are below it, so a uint16 also holds one ignore label

// Row-major float32.
struct HostTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using HostTensorPtr = std::shared_ptr<const HostTensor>;  // never null unless a comment says so

// A column of the network's input: value = field * scale + shift, with the cloud's field in its canonical unit.
struct InputFeature {
  std::string name;
  std::string unit;
  float scale = 1;
  float shift = 0;
  // The field's value where the cloud has no such field; none: the field is required.
  std::optional<float> default_value = std::nullopt;
  std::optional<ValueRange> range = std::nullopt;  // clouds with many other values get a warning; none: any value
};

// Selects the points that the network sees. It has no inputs, and only the voxelize node reads it.
struct FarthestPointSampleOp {
  FarthestPoints points;
};

// Turns points into voxels, the sites of level 0. Its only possible input is the FarthestPointSampleOp. A graph has
// exactly one VoxelizeOp. Its channels are the features.
struct VoxelizeOp {
  std::array<float, kernels::kMaxDimension> voxel_size = {1, 1, 1, 1};  // m (a fourth axis: s), > 0
  kernels::VoxelRounding rounding = kernels::VoxelRounding::kHalfEven;
  kernels::VoxelOrigin origin = kernels::VoxelOrigin::kMinimum;
  kernels::VoxelReduce reduce = kernels::VoxelReduce::kFirst;
  // True: only points with range_min <= x < range_max on every axis count. Always true with VoxelOrigin::kRange.
  bool has_range = false;
  std::array<float, kernels::kMaxDimension> range_min = {0, 0, 0, 0};
  std::array<float, kernels::kMaxDimension> range_max = {0, 0, 0, 0};
  // Only with VoxelOrigin::kRange: the voxels per axis. They are those of the range (kernels::GridShape), or the larger
  // spatial_shape of model.textproto. A coordinate key can hold every position in it.
  std::optional<kernels::Axes> grid_shape;
  int64_t max_points_per_voxel = 0;      // for VoxelReduce::kMean: only the first ones count; 0: no limit
  std::vector<InputFeature> features;    // at least one
  std::vector<std::string> axes;         // [dimension] fields of the cloud
  std::optional<FarthestPoints> sample;  // FarthestPointSampleOp::points of its input; nullopt: no input
};

// Returns true if the axes begin with x, y and z, so that farthest points can be sampled by their distances in space.
inline bool BeginsWithSpatialAxes(const VoxelizeOp& op) {
  return op.axes.size() >= 3 && op.axes[0] == "x" && op.axes[1] == "y" && op.axes[2] == "z";
}

struct SparseConvOp {
  // A generative convolution is kTransposed with CoordinateRule::kGenerative.
  enum class Kind { kSubmanifold, kStrided, kInverse, kTransposed };
  Kind kind = Kind::kSubmanifold;
  // Says how a strided or transposed convolution makes its output sites. An inverse convolution has a copy of its
  // partner's rule. A submanifold convolution, and one with sites_of, use only the rule's geometry.
  SiteRule sites;
  int in_channels = 0;
  int out_channels = 0;
  int paired_with = -1;  // kInverse: index of the strided convolution or pool
  int sites_of = -1;     // index of the node whose sites are the output's; -1: they follow from `sites`
  // For a listed kernel (a kernel that is no box): cell k is cell stored_cells[k] of the weight in the file. Empty: the
  // file has the same order.
  std::vector<int32_t> stored_cells;
  // Index in Graph::levels.rulebooks(). An inverse or transposed convolution has the rulebook of the convolution or
  // pool that it reverses.
  int rulebook = 0;
  // [K, in_channels, out_channels] in the order of the geometry's cells; values that connect different groups are 0.
  HostTensorPtr weight;
  HostTensorPtr bias;  // [out_channels]; null: none

  const kernels::ConvGeometry& geometry() const { return sites.geometry; }
  // True if the convolution reads its rulebook with the pairs swapped: its inputs are the rulebook's outputs.
  bool is_swapped() const { return kind == Kind::kInverse || kind == Kind::kTransposed; }
};

// y = (x - running_mean) / sqrt(running_var + epsilon) * weight + bias, all [channels].
struct BatchNormOp {
  float epsilon = 1e-5f;
  HostTensorPtr weight;
  HostTensorPtr bias;
  HostTensorPtr running_mean;
  HostTensorPtr running_var;
};

// y = x W^T + b.
struct LinearOp {
  int in_channels = 0;
  int out_channels = 0;
  HostTensorPtr weight;  // [out_channels, in_channels]
  HostTensorPtr bias;    // [out_channels]; null: none
};

struct ActivationOp {
  kernels::Activation activation = kernels::ActivationFunction::kRelu;
};

// Adds two inputs with the same channels. If they are on different levels, the result is on the union of these levels,
// and an input counts as 0 at a site that it lacks. Both inputs may be the same node.
struct AddOp {
  std::vector<int> rulebooks;  // LevelTable::SameSiteRulebook of each input to the result's level; empty: one level
};

// Puts the channels of two or more inputs side by side, in the order of the inputs. Levels are as for AddOp.
struct ConcatOp {
  std::vector<int> rulebooks;  // as AddOp::rulebooks
};

// Keeps the rows of the sites within bounds (SiteFilter of the result's level).
struct CropOp {
  int rulebook = 0;  // LevelTable::SameSiteRulebook of the input to the result's level
};

// Keeps the rows of the sites with a score above a threshold (SiteFilter of the result's level). Inputs: a tensor, then
// the scores of its sites.
struct PruneOp {
  int rulebook = 0;  // LevelTable::SameSiteRulebook of the first input to the result's level
};

// Gives each point its voxel's row. Inputs: a tensor on level 0, then the voxelize node. It is the only operator on
// rows that also reads labels.
struct VoxelToPointOp {};

// Gives each point its features. Input: the voxelize node. Channels: one per feature.
struct PointFeaturesOp {};

// Gives each point its offset within its voxel, in metres. Input: the voxelize node. Channels: one per axis.
struct PointOffsetsOp {
  // True: the offset from the mean of the voxel's points. False: the offset from the voxel's centre; the voxelize then
  // does not have VoxelOrigin::kMinimum.
  bool is_from_mean = false;
  int64_t max_points = 0;  // with is_from_mean: only a voxel's first max_points points count; 0: all
};

// Reduces rows of points to rows of sites. Inputs: a tensor on points, then the voxelize node; or one tensor on the
// sites of a level whose unit (the size of a site in voxels) is not larger than that of the result's level, where each
// site counts as a point. With has_empty_slots, a third input stands between the first two: a tensor on level 0 (the
// voxels), whose row of a voxel stands for each of the voxel's slots that has no point.
struct PointToVoxelOp {
  kernels::PoolReduce reduce = kernels::PoolReduce::kMax;
  int sites_of = -1;       // index of the node whose sites are the output's; -1: the voxels
  int64_t max_points = 0;  // only a site's first max_points points count; 0: all
  // True: each voxel has max_points slots for points, and a voxel with fewer points also reduces its row of the third
  // input. Only with kMax, max_points and the voxels as sites.
  bool has_empty_slots = false;
};

// Interpolates a tensor on sites at other positions. Inputs: the tensor, then the voxelize node (the positions are the
// points) or a tensor on sites of a unit that is not coarser (the positions are these sites).
struct DevoxelizeOp {};

// Gives each row the index of its largest channel. Only voxel_to_point and outputs read the result, which is labels.
struct ArgmaxOp {
  int num_classes = 0;  // channels of the input, at most kMaxClasses
};

// Pools over the sites that a convolution with the same parameters would read. Its fields have the same meanings as in
// SparseConvOp.
struct PoolOp {
  kernels::PoolReduce reduce = kernels::PoolReduce::kMax;
  SparseConvOp::Kind kind = SparseConvOp::Kind::kSubmanifold;
  SiteRule sites;
  int paired_with = -1;  // kInverse: index of the strided pool or convolution
  int rulebook = 0;

  bool is_swapped() const { return kind == SparseConvOp::Kind::kInverse || kind == SparseConvOp::Kind::kTransposed; }
};

// Reduces all sites of a sample to one row, on kSampleLevel.
struct GlobalPoolOp {
  kernels::PoolReduce reduce = kernels::PoolReduce::kMax;
  float exponent = 0;  // with kAverage: above 0, the exponent of a generalised mean; 0: the plain mean
  float epsilon = 0;   // for a generalised mean: smaller values count as epsilon
};

// Combines each site's row with its sample's row. Inputs: a tensor on sites, then a tensor on kSampleLevel.
struct BroadcastOp {
  enum class Function { kAdd, kMultiply, kConcat };
  Function function = Function::kAdd;
};

// Instance norm (every channel is a group) or group norm, with mean and variance over all sites of a sample.
struct SampleNormOp {
  int num_groups = 1;  // divides the channels
  float epsilon = 1e-5f;
  HostTensorPtr weight;  // [channels]; null: 1
  HostTensorPtr bias;    // [channels]; null: 0
};

// Gives every sample the same learned rows. No inputs. With one row per sample, GraphNode::grid is not set; with more
// rows it is a grid of one axis. The rows of a `constant` are the cells of an image; its grid has two axes.
struct SampleRowsOp {
  HostTensorPtr weight;  // [rows per sample, channels]; of a constant [rows, columns, channels]
};

// Cuts an order of its input's sites into groups. It reads only the input's level, and it has no values: no node reads
// it, and AttentionOp::groups_of names it. Its channels are 1.
struct GroupsOp {
  SiteOrderSpec order;  // its spread_size is `size` if the tail is kSpread
  int32_t size = 1;     // 1 to kernels::kMaxGroupSize; with kSpread, at most the volume of a window
  kernels::GroupTail tail = kernels::GroupTail::kBorrows;
};

// Dot-product attention within each sample, or within each group of a sample's sites. Inputs: queries, keys and values.
// Keys and values have the same rows, on sites or on kSampleLevel; queries and the result have rows of any level. With
// groups, all are on the groups' level.
struct AttentionOp {
  int num_heads = 1;   // divides the channels of queries, keys and values
  float scale = 1;     // factor of the dot products of queries and keys
  int groups_of = -1;  // index of the GroupsOp; -1: within each sample
};

// Combines two inputs with the same rows, value by value. One of them may have 1 channel, which counts for all channels
// of the other. Both inputs may be the same node.
struct ElementwiseOp {
  kernels::Elementwise function = kernels::Elementwise::kMultiply;
  float epsilon = 0;  // of kDivide, added to the divisor
};

// Normalises each row over its own channels (softmax, layer norm or L2 norm), or reduces them to 1.
struct RowNormOp {
  kernels::RowNorm kind = kernels::RowNorm::kSoftmax;
  float epsilon = 0;     // of a layer norm or an L2 norm
  HostTensorPtr weight;  // of a layer norm, [channels]; null: 1
  HostTensorPtr bias;    // of a layer norm, [channels]; null: 0
};

// y = x, or slope * x where x is below 0.
struct PReluOp {
  HostTensorPtr slopes;  // [1] or [channels]
};

// Replaces each row by a row of a table. One channel of the input holds the index of the table's row.
struct EmbeddingOp {
  int channel = 0;
  HostTensorPtr table;  // [num_embeddings, channels]
};

// Gives each site of its input's level its coordinate, one channel per axis.
struct SiteCoordinatesOp {
  kernels::SiteCoordinatesParams parameters;  // scale and shift
};

// Rotates pairs of channels by angles that grow with the rows' positions (kernels/rows/rotary.h). Inputs: a tensor on
// sites, then the positions of these sites, one channel per axis; without the second input the positions are the sites'
// coordinates.
struct RotaryOp {
  int num_heads = 1;  // divides the channels into heads of a multiple of 2 * dimension channels
  float base = 0;     // > 0
};

// Gives each voxel a position, one channel per axis (kernels/image/sites/voxel_positions.h). Input: the voxelize node.
// The result, and a pool of it, are float32 whatever type the features have (Layers::IsPosition).
struct SitePositionOp {
  bool is_mean = false;          // true: the mean of the voxel's points; false: its first point
  bool is_from_minimum = false;  // true: the sample's minimum is subtracted first
  std::array<float, kernels::kMaxDimension> scale = {1, 1, 1, 1};
  std::array<float, kernels::kMaxDimension> shift = {0, 0, 0, 0};
};

// Copies the sites of a level with a spatial shape to the cells of GraphNode::grid.
struct ToDenseOp {
  bool is_from_above = false;  // to_bev: the result is an image, with the last axis folded into its channels
};

// Copies cells of a grid back to the sites of a level with the grid's shape.
struct FromDenseOp {
  int sites_of = -1;  // index of the node that defines the output's sites
};

// Takes the maximum over windows of an image. The sizes of the images are GraphNode::grid of the input and this node.
struct MaxPool2dOp {
  kernels::Conv2dGeometry geometry;  // its kernel, stride and padding
};

// Computes a convolution or transposed convolution of an image. The sizes of the images are GraphNode::grid of the
// input and this node.
struct Conv2dOp {
  kernels::Conv2dGeometry geometry;
  int in_channels = 0;
  int out_channels = 0;
  HostTensorPtr weight;  // [out, in / groups, rows, columns]; if transposed [in, out, rows, columns]
  HostTensorPtr bias;    // [out]; null: none
};

// Decodes boxes from the head of one CenterPoint task. Inputs: heatmap, center, height, dim, rot and, with
// has_velocity, vel, then, with has_iou, iou. They are images of one size, or rows on one level whose spatial shape has
// a single cell on z.
struct CenterHeadDecodeOp {
  kernels::CenterHead head;  // without the pointers and pitches of images and boxes
  bool has_velocity = false;
  bool has_iou = false;
};

// Decodes boxes from SECOND's head. Inputs: scores, boxes (residuals), directions: images of one size.
struct AnchorHeadDecodeOp {
  kernels::AnchorHeadParams head;  // without the pointers and pitches of images and boxes
};

// Selects the queries of each sample: the best peaks of its input, an image of logits. GraphNode::is_selection is true,
// and only GatherOp and QueryDecodeOp read the result. They have its rows, one per query.
struct SelectOp {
  kernels::SelectPeaksParams parameters;  // without pointers and pitches
};

// Reads something at each query. Inputs: with kFeatures an image of the size that the select reads, then the select;
// else the select alone.
struct GatherOp {
  kernels::GatherOf of = kernels::GatherOf::kFeatures;
};

// Decodes boxes from queries. Inputs: the select, then heatmap, center, height, dim, rot and, with has_velocity, vel:
// rows of the select's queries.
struct QueryDecodeOp {
  kernels::QueryDecodeParams head;  // without the pointers and pitches of rows and boxes
  bool has_velocity = false;
};

// Runs non-maximum suppression on decoded boxes, separately on each input (kernels/boxes/rotated_nms.h).
struct NmsOp {
  float iou_threshold = 0;
  int max_boxes_in = 0;   // only the best max_boxes_in boxes of each input and sample are read; 0: all
  int max_boxes_out = 1;  // at most this many boxes of each input and sample are kept
  // In place of these limits, if there are any: the limits of each class, whose boxes are handled on their own.
  std::vector<kernels::NmsClass> classes = {};
};

using GraphOp =
    std::variant<VoxelizeOp, SparseConvOp, BatchNormOp, LinearOp, ActivationOp, AddOp, ConcatOp, VoxelToPointOp,
                 ArgmaxOp, PoolOp, GlobalPoolOp, BroadcastOp, SampleNormOp, FarthestPointSampleOp, PointFeaturesOp,
                 PointOffsetsOp, PointToVoxelOp, DevoxelizeOp, ToDenseOp, FromDenseOp, Conv2dOp, MaxPool2dOp, CropOp,
                 PruneOp, CenterHeadDecodeOp, AnchorHeadDecodeOp, NmsOp,
                 // Operators of rows.
                 ElementwiseOp, RowNormOp, PReluOp, EmbeddingOp, SiteCoordinatesOp,
                 // Attention within samples and groups.
                 SampleRowsOp, AttentionOp, GroupsOp,
                 // Positions of sites.
                 RotaryOp, SitePositionOp,
                 // Queries.
                 SelectOp, GatherOp, QueryDecodeOp>;

// Returns true for an operator that decodes boxes from images, from rows on sites or from queries.
inline bool IsDecoder(const GraphOp& op) {
  return std::holds_alternative<CenterHeadDecodeOp>(op) || std::holds_alternative<AnchorHeadDecodeOp>(op) ||
         std::holds_alternative<QueryDecodeOp>(op);
}

// Returns true for an operator of the head. The head makes labels or boxes from the last features, runs after all other
// layers, and is timed as a stage of its own. Values that only the head reads are float32, whatever type the features
// have (Layers::StaysFloat32). A voxel_to_point that no node reads belongs to the head too (Layers::IsHead).
inline bool IsHeadOp(const GraphOp& op) {
  return std::holds_alternative<ArgmaxOp>(op) || IsDecoder(op) || std::holds_alternative<NmsOp>(op);
}

// Returns the node whose rulebook an inverse convolution or pool reverses (paired_with); -1: none.
inline int PartnerOf(const GraphOp& op) {
  if (const auto* conv = std::get_if<SparseConvOp>(&op)) return conv->paired_with;
  if (const auto* pool = std::get_if<PoolOp>(&op)) return pool->paired_with;
  return -1;
}

// Returns the node whose sites an operator's result has (sites_of); -1: none.
inline int SitesOf(const GraphOp& op) {
  if (const auto* conv = std::get_if<SparseConvOp>(&op)) return conv->sites_of;
  if (const auto* to_voxel = std::get_if<PointToVoxelOp>(&op)) return to_voxel->sites_of;
  if (const auto* from_dense = std::get_if<FromDenseOp>(&op)) return from_dense->sites_of;
  return -1;
}

// Returns the node of the groups within which an attention stays (groups_of); -1: none.
inline int GroupsOf(const GraphOp& op) {
  const auto* const attention = std::get_if<AttentionOp>(&op);
  return attention == nullptr ? -1 : attention->groups_of;
}

// The shape of a dense result: one cell for every position, row-major in the order of its axes. An image has the axes
// rows, columns.
struct GridShape {
  int dimension = 2;  // 1 to 4
  kernels::Axes size = {1, 1, 1, 1};

  int64_t num_cells() const { return int64_t{1} * size[0] * size[1] * size[2] * size[3]; }
  bool operator==(const GridShape&) const = default;
};

struct GraphNode {
  std::string name;         // unique
  std::vector<int> inputs;  // indices of earlier nodes
  GraphOp op = {};

  // The node's result.
  int level = 0;                  // level of its rows: a coordinate level's id, kSampleLevel or kPointLevel
  std::optional<GridShape> grid;  // on kSampleLevel, for cells or several rows; nullopt: one row per sample, or boxes
  int max_boxes = 0;              // on kSampleLevel, for boxes (kernels/boxes/box_rows.h): rows per sample; else 0
  int channels = 0;               // labels have 1
  bool is_labels = false;         // true: class ids; false: floating-point features
  bool is_selection = false;      // true: queries (kernels/boxes/selection.h), which are no features
  // The tensor "<node>.scale": in 8 bits, the result is whole numbers times it (compiler/int8_values.h). 0: none.
  float scale = 0;

  // Returns the rows of each sample, on kSampleLevel.
  int64_t rows_per_sample() const { return max_boxes > 0 ? max_boxes : grid ? grid->num_cells() : 1; }
  // Returns true if both nodes have the same rows: sites, samples, cells or points.
  bool HasRowsOf(const GraphNode& other) const {
    return level == other.level && grid == other.grid && max_boxes == other.max_boxes;
  }
  // Sets the rows of a node that computes one row from each row of the other.
  void TakeRowsOf(const GraphNode& other) {
    level = other.level;
    grid = other.grid;
    max_boxes = other.max_boxes;
  }
};

// An output tensor that requests may ask for by its name. node: the index in Graph::nodes of the node whose features
// the tensor has.
struct GraphTensor {
  std::string name;
  int node = 0;
};

struct Graph {
  std::string name;         // for people; the folder's name is what requests use
  std::string description;  // for people
  int dimension = 3;        // 1 to 4
  std::vector<GraphNode> nodes;
  int voxelize = 0;  // index of the one VoxelizeOp

  // A network has at least one output: labels, boxes or tensors. Index -1: the network does not have this output.
  int labels_output = -1;            // index of a node on points: an argmax, or a voxel_to_point of one
  int scores_output = -1;            // beside labels: index of a node on points, of features with num_classes channels
  int boxes_output = -1;             // index of a node of boxes
  bool has_velocities = false;       // boxes have velocities
  std::vector<GraphTensor> tensors;  // at most kMaxTensors, with unique names
  int num_classes = 0;               // ids of labels and boxes are below it; 0 for a network with neither

  LevelTable levels;
  int64_t num_parameters = 0;  // values in weights.safetensors
  std::string digest;          // SHA-256 of graph and weights as stored, in lower-case hexadecimal digits
  std::string network_digest;  // SHA-256 of the network without names, weights and ranges: equal if only these differ

  // Returns the node of each output.
  std::vector<int> OutputNodes() const;
  const VoxelizeOp& voxelize_op() const { return std::get<VoxelizeOp>(nodes[voxelize].op); }
};

inline std::vector<int> Graph::OutputNodes() const {
  std::vector<int> outputs;
  for (const int output : {labels_output, scores_output, boxes_output}) {
    if (output >= 0) outputs.push_back(output);
  }
  for (const GraphTensor& tensor : tensors) outputs.push_back(tensor.node);
  return outputs;
}

}  // namespace voxserve
