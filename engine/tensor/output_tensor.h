#pragma once

// An output tensor is the features of one of a network's nodes, returned as they are to a request that asks for the
// tensor by its name (KIND_TENSOR in proto/voxserve/model/v1/model.proto).

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/tensor/dtype.h"

namespace voxserve {

inline constexpr int kMaxTensors = 64;  // per model, since a TensorSet has one bit for each tensor

// A set of a model's tensors: bit i stands for tensor i.
using TensorSet = uint64_t;
constexpr TensorSet TensorBit(int tensor) { return TensorSet{1} << tensor; }
// Returns the set of the first num_tensors tensors; num_tensors is at most kMaxTensors.
constexpr TensorSet AllTensors(size_t num_tensors) {
  return num_tensors == 0 ? 0 : ~TensorSet{0} >> (static_cast<size_t>(kMaxTensors) - num_tensors);
}

// Says what a tensor has one row for: each point, each site (occupied voxel) of a level, each sample (a request's
// cloud), or each cell of a dense grid.
enum class TensorRows { kPoints, kSites, kSamples, kCells };

// A tensor that a model can answer with.
struct TensorInfo {
  std::string name;
  TensorRows rows = TensorRows::kPoints;
  int32_t channels = 0;
  // For sites: the distance of neighbouring positions in voxels, one per axis; 0: the fraction does not fit 64 bits.
  std::vector<double> unit = {};
  std::vector<int64_t> cells = {};  // for cells: the size of each axis
};

// One sample's rows of a tensor.
struct OutputTensor {
  TensorInfo info;
  DType dtype = DType::kFloat32;  // or kFloat16
  std::string bytes = {};         // [num_rows, channels], little endian
  std::string coordinates = {};   // for sites: [num_rows, axes] int32, little endian, in steps of TensorInfo::unit

  int64_t row_bytes() const { return info.channels * SizeOf(dtype); }
  int64_t num_rows() const { return static_cast<int64_t>(bytes.size()) / row_bytes(); }
  // Returns [num_rows, channels]; for cells [size of each axis..., channels].
  std::vector<int64_t> Shape() const;
};

// Returns float32 values as IEEE 754 binary16, rounded to nearest, ties to even: magnitudes of 65520 and more become
// infinite, those up to 2^-25 become 0, NaN stays NaN.
std::string Float16Bytes(const std::string& float32_bytes);

}  // namespace voxserve
