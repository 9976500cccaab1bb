#pragma once

// The parameters of one node, as far as they can be checked without knowing its inputs or its tensors: lists have one
// entry per axis, numbers are in range, defaults are filled in.
//
// Shared by the functions: `at` reports for the node, and the result is empty where something was reported.

#include <optional>
#include <string>

#include "engine/model/graph.h"
#include "engine/model/problems.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve {

inline constexpr int kMaxChannels = 65536;      // of any tensor
inline constexpr int kMaxClasses = 65535;       // ids are below it: one is left for points without a label
inline constexpr int kMaxKernelOffsets = 4096;  // cells of a kernel

std::optional<VoxelizeOp> ReadVoxelize(const model::v1::Voxelize& proto, int dimension, const ProblemsAt& at);

std::optional<FarthestPointSampleOp> ReadFarthestPointSample(const model::v1::FarthestPointSampling& proto,
                                                             const ProblemsAt& at);

// Whether a sample can be taken: distances are between the first three axes.
bool BeginsWithSpatialAxes(const VoxelizeOp& op);

// Kind and, but for an inverse, sites. Not its channels, partner or rulebook.
std::optional<SparseConvOp> ReadSparseConv(const model::v1::SparseConv& proto, int dimension, const ProblemsAt& at);

// 1 where the file says none; 0, and a problem unless channels are not known (0), where they do not divide the
// channels.
int ReadGroups(uint32_t groups, int in_channels, int out_channels, const ProblemsAt& at);

std::optional<ActivationOp> ReadActivation(const model::v1::Activation& proto, const ProblemsAt& at);

std::optional<kernels::PoolReduce> ReadReduce(model::v1::Pool::Reduce reduce, const ProblemsAt& at);

// Likewise of a pool, and its reduce.
std::optional<PoolOp> ReadPool(const model::v1::Pool& proto, int dimension, const ProblemsAt& at);

std::optional<SiteFilter> ReadCrop(const model::v1::Crop& proto, int dimension, const ProblemsAt& at);

// 0 where it is not in 1..kMaxChannels.
int ReadOutChannels(uint32_t out_channels, const ProblemsAt& at);

// For messages: "188 x 376".
std::string SizeText(const GridShape& grid);

}  // namespace voxserve
