#pragma once

// These functions are the checks of the operators that are in files of their family; operator_table.h has a row for
// each, and its .cc the checks of the others. At the end stand the functions that read parameters for several checks.

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/model/checks/node_context.h"
#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

// ---- voxelize_checks.cc: the network's input, which is the voxelize node and the farthest_point_sample node that it
// may read

void CheckVoxelize(NodeContext& context);
void CheckFarthestPointSample(NodeContext& context);

// ---- sparse_conv_checks.cc: sparse convolutions. To place a convolution or pool is to find the level of its output
// sites, and the rulebook between its input and output sites (levels.h).

void CheckSparseConv(NodeContext& context);

// Places a convolution or pool on the new output sites that op->sites makes. Sets the node's level and op->rulebook.
// Returns false if they cannot be determined, and reports a problem unless the cause was reported before.
bool PlaceOnNewSites(const GraphNode& input, SparseConvOp* op, NodeContext& context);
// Places an inverse convolution or pool on the input sites of its partner (paired_with). Sets the node's level, and
// takes the rulebook, sites and stored_cells of the partner. Returns false and reports as PlaceOnNewSites does.
bool PlaceInverse(const GraphNode& input, SparseConvOp* op, NodeContext& context);

// ---- pool_checks.cc: pooling, local and over whole samples, and broadcast

void CheckPool(NodeContext& context);
void CheckGlobalPool(NodeContext& context);
void CheckBroadcast(NodeContext& context);

// Returns nullopt and reports a problem at `at` if `reduce` is not set, unknown or REDUCE_GENERALISED_MEAN, which only
// global_pool may have.
std::optional<kernels::PoolReduce> ReadReduce(model::v1::Pool::Reduce reduce, const ProblemsAt& at);

// ---- site_checks.cc: operators that make sites from other nodes' sites, which are unions, crops and prunes

void CheckCrop(NodeContext& context);
void CheckPrune(NodeContext& context);

// Returns all inputs of an addition or concatenation, and sets the node's rows and `rulebooks` (AddOp::rulebooks). If
// the inputs cannot be combined, returns an empty list, and reports a problem unless it was reported before.
std::vector<const GraphNode*> MeetInputs(model::v1::Sites sites, std::vector<int>* rulebooks, NodeContext& context);

// ---- row_checks.cc: operators that compute each row on its own and run as steps of their own, since nothing is fused
// into them

void CheckMultiply(NodeContext& context);
void CheckElementwise(NodeContext& context);
void CheckRowReduce(NodeContext& context);
void CheckSiteCoordinates(NodeContext& context);
void CheckSoftmax(NodeContext& context);
void CheckLayerNorm(NodeContext& context);
void CheckL2Norm(NodeContext& context);
void CheckPRelu(NodeContext& context);
void CheckEmbedding(NodeContext& context);

// Reads windows of sites from the fields `shape_name` and `shift_name`: one shape for each axis of the network, 1 to
// kernels::kMaxWindowShape, and no shift or one for each axis, below its shape. Returns false and reports problems if
// they are others.
bool ReadWindow(const char* shape_name, const google::protobuf::RepeatedField<uint32_t>& shape, const char* shift_name,
                const google::protobuf::RepeatedField<uint32_t>& shift, kernels::Axes* shape_to,
                kernels::Axes* shift_to, const NodeContext& context);

// Copies one value per axis to `to`, or leaves it as it is if there are no values. Reports any other number of values,
// and values that are not finite.
void ReadAxisValues(const char* name, const google::protobuf::RepeatedField<float>& values, float* to,
                    const NodeContext& context);

// ---- norm_checks.cc: norms that use each sample's own statistics

void CheckInstanceNorm(NodeContext& context);
void CheckGroupNorm(NodeContext& context);

// ---- attention_checks.cc: attention within samples or groups, the rotation of its queries and keys by their
// positions, and the learned rows that such a network may begin with

void CheckSampleRows(NodeContext& context);
void CheckAttention(NodeContext& context);
void CheckRotary(NodeContext& context);

// ---- groups_checks.cc: groups of sites along a curve

void CheckGroups(NodeContext& context);

// ---- point_checks.cc: operators on rows of points, and those between points and voxels

void CheckPointFeatures(NodeContext& context);
void CheckPointOffsets(NodeContext& context);
void CheckSitePosition(NodeContext& context);
void CheckPointToVoxel(NodeContext& context);
void CheckVoxelToPoint(NodeContext& context);
void CheckDevoxelize(NodeContext& context);

// ---- grid_checks.cc: dense grids, which are sites to cells and back, convolutions and pools of images, constants

void CheckToDense(NodeContext& context);
void CheckToBev(NodeContext& context);
void CheckFromDense(NodeContext& context);
void CheckConv2d(NodeContext& context);
void CheckConvTranspose2d(NodeContext& context);
void CheckMaxPool2d(NodeContext& context);
void CheckConstant(NodeContext& context);

// ---- query_checks.cc: queries, which are selected cells of images

void CheckSelect(NodeContext& context);
void CheckGather(NodeContext& context);

// ---- box_checks.cc: heads that decode boxes

void CheckCenterHeadDecode(NodeContext& context);
void CheckAnchorHeadDecode(NodeContext& context);
void CheckQueryDecode(NodeContext& context);

// Makes the node's rows boxes of samples, up to max_boxes each.
void SetBoxes(int32_t max_boxes, GraphNode& node);

// ---- nms_checks.cc: non-maximum suppression

void CheckNms(NodeContext& context);

// ---- activation_parameters.cc

// Returns nullopt and reports a problem at `at` if the function or one of its parameters (slope, alpha, ...) is wrong.
std::optional<ActivationOp> ReadActivation(const model::v1::Activation& proto, const ProblemsAt& at);

// ---- channel_parameters.cc: the channels of convolutions and linear layers

// Returns the number of channels. Returns 0 and reports a problem if it is not in 1..kMaxChannels.
int ReadOutChannels(uint32_t out_channels, const ProblemsAt& at);

// Returns the number of groups; the default is 1. Returns 0 and reports a problem if it does not divide the channels.
// Returns 0 without a problem if there are several groups and the channels are not known (0).
int ReadGroups(uint32_t groups, int in_channels, int out_channels, const ProblemsAt& at);

// ---- sparse_conv_parameters.cc: the parameters of a convolution that do not depend on its input or tensors

// Checks that lists have one entry per axis and that numbers are in range, fills in defaults and makes padding
// canonical. Returns an op with its kind and, except for an inverse convolution, its sites and stored_cells. Channels,
// partner and rulebook are not set. Returns nullopt if it has reported a problem at `at`.
std::optional<SparseConvOp> ReadSparseConv(const model::v1::SparseConv& proto, int dimension, const ProblemsAt& at);

}  // namespace voxserve
