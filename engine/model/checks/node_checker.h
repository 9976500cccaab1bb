#pragma once

// Checks one node after the other, in topological order, and appends it to the graph: parameters, inputs, channels,
// coordinate levels and tensors. The validator's inner half.
//
// A node whose result is not known, for a problem of its own or of an input, has 0 channels; whoever reads it is then
// checked for its own parameters and tensors alone.

#include <optional>
#include <string>
#include <vector>

#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "engine/model/weight_reader.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

class NodeChecker {
 public:
  // Both outlive the checker. graph->dimension is set.
  NodeChecker(Graph* graph, WeightReader* weights) : graph_(*graph), weights_(*weights) {}

  // Appends exactly one node to the graph. inputs and partner (of one with paired_with or sites_of) are indices of
  // nodes that have been checked, -1 for those that do not exist or stand in a cycle, which has been reported.
  void Check(const model::v1::Node& proto, std::vector<int> inputs, int partner, const ProblemsAt& at);

  bool has_voxelize() const { return has_voxelize_; }

 private:
  void CheckVoxelize(const model::v1::Voxelize& proto, GraphNode* node, const ProblemsAt& at);
  void CheckFarthestPointSample(const model::v1::FarthestPointSampling& proto, GraphNode* node, const ProblemsAt& at);
  void CheckSparseConv(const model::v1::SparseConv& proto, int partner, GraphNode* node, const ProblemsAt& at);
  void CheckBatchNorm(const model::v1::BatchNorm& proto, GraphNode* node, const ProblemsAt& at);
  void CheckLinear(const model::v1::Linear& proto, GraphNode* node, const ProblemsAt& at);
  void CheckActivation(const model::v1::Activation& proto, GraphNode* node, const ProblemsAt& at);
  void CheckAdd(const model::v1::Add& proto, GraphNode* node, const ProblemsAt& at);
  void CheckConcat(const model::v1::Concat& proto, GraphNode* node, const ProblemsAt& at);
  void CheckVoxelToPoint(GraphNode* node, const ProblemsAt& at);
  void CheckArgmax(GraphNode* node, const ProblemsAt& at);
  void CheckPointFeatures(GraphNode* node, const ProblemsAt& at);
  // Sites of `level` have units of the input's or coarser ones.
  bool IsCoarsening(const GraphNode& input, int level, const ProblemsAt& at) const;
  void CheckPointToVoxel(const model::v1::PointToVoxel& proto, int partner, GraphNode* node, const ProblemsAt& at);
  void CheckDevoxelize(GraphNode* node, const ProblemsAt& at);
  void CheckPool(const model::v1::Pool& proto, int partner, GraphNode* node, const ProblemsAt& at);

  void CheckCrop(const model::v1::Crop& proto, GraphNode* node, const ProblemsAt& at);
  void CheckPrune(const model::v1::Prune& proto, GraphNode* node, const ProblemsAt& at);

  void CheckGlobalPool(const model::v1::GlobalPool& proto, GraphNode* node, const ProblemsAt& at);
  void CheckBroadcast(const model::v1::Broadcast& proto, GraphNode* node, const ProblemsAt& at);
  void CheckInstanceNorm(const model::v1::InstanceNorm& proto, GraphNode* node, const ProblemsAt& at);
  void CheckGroupNorm(const model::v1::GroupNorm& proto, GraphNode* node, const ProblemsAt& at);
  // What both norms have. num_groups 0: it has a problem.
  void CheckSampleNorm(int num_groups, float epsilon, bool is_affine, GraphNode* node, const ProblemsAt& at);

  void CheckToDense(bool is_from_above, GraphNode* node, const ProblemsAt& at);
  void CheckFromDense(const model::v1::FromDense& proto, int sites_of, GraphNode* node, const ProblemsAt& at);
  void CheckConv2d(const model::v1::Conv2d& proto, GraphNode* node, const ProblemsAt& at);
  void CheckConvTranspose2d(const model::v1::ConvTranspose2d& proto, GraphNode* node, const ProblemsAt& at);
  // What both have. geometry: empty where it has a problem.
  void CheckImageConv(const std::optional<kernels::Conv2dGeometry>& geometry, bool is_transposed, uint32_t out_channels,
                      uint32_t groups, bool has_bias, GraphNode* node, const ProblemsAt& at);
  // As FeaturesInput, of an operator that has one input, an image.
  const GraphNode* ImageInput(const GraphNode& node, const ProblemsAt& at) const;
  // The size of an image that a convolution makes, and its channels; a problem where it has none.
  void PlaceConv2d(const GraphNode& input, const Conv2dOp& op, GraphNode* node, const ProblemsAt& at);

  void CheckCenterHeadDecode(const model::v1::CenterHeadDecode& proto, GraphNode* node, const ProblemsAt& at);
  void CheckAnchorHeadDecode(const model::v1::AnchorHeadDecode& proto, GraphNode* node, const ProblemsAt& at);
  void CheckNms(const model::v1::Nms& proto, GraphNode* node, const ProblemsAt& at);
  struct HeadImage {
    const char* name;  // for messages
    int channels;      // 0: not known
  };
  // The size of a head's images, which its inputs are in their order; empty, and a problem unless there was one before,
  // where they do not fit.
  std::optional<GridShape> HeadImages(const GraphNode& node, const std::vector<HeadImage>& images,
                                      const ProblemsAt& at) const;
  // The voxelize, in whose range boxes lie; null, and a problem unless there was one before, where it has none.
  const VoxelizeOp* RangeOfBoxes(const ProblemsAt& at) const;

  // Where a convolution's or pool's output sites are: true, and node->level and the op's rulebook and sites, where
  // known.
  bool PlaceOnNewSites(const GraphNode& input, SparseConvOp* op, GraphNode* node, const ProblemsAt& at);
  bool PlaceOnGivenSites(const GraphNode& input, int partner, SparseConvOp* op, GraphNode* node, const ProblemsAt& at);
  bool PlaceInverse(const GraphNode& input, int partner, SparseConvOp* op, GraphNode* node, const ProblemsAt& at);

  // The input's node where its result is known and may be read as voxel features; null, and a problem where it may
  // not, otherwise.
  const GraphNode* FeaturesInput(const GraphNode& node, size_t input, const ProblemsAt& at) const;
  // All inputs, on one coordinate level; empty, and a problem unless there was one before, otherwise.
  std::vector<const GraphNode*> FeaturesOnOneLevel(const GraphNode& node, const ProblemsAt& at) const;
  // True where this input is the voxelize, or is not known; else a problem. which: "second ", say.
  bool IsVoxelize(const GraphNode& node, size_t input, const char* which, const ProblemsAt& at) const;
  // All inputs of an addition or concatenation; node has its rows then, and rulebooks are those of AddOp. Empty, and a
  // problem unless there was one before, where they cannot meet.
  std::vector<const GraphNode*> MeetInputs(model::v1::Sites sites, std::vector<int>* rulebooks, GraphNode* node,
                                           const ProblemsAt& at);
  // What its rows are, for messages: "a row a site".
  static const char* RowsText(const GraphNode& node);
  // Null where unknown.
  const GraphNode* Known(const GraphNode& node, size_t input) const;

  Graph& graph_;
  WeightReader& weights_;
  bool has_voxelize_ = false;
  bool is_grid_unknown_ = false;  // the voxelize has a problem, so that what PADDED needs to know is not known
};

}  // namespace voxserve
