#pragma once

// Tensors that a network answers with: features of any node, as they are.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/tensor/dtype.h"

namespace voxserve {

inline constexpr int kMaxTensors = 64;  // of a model: a TensorSet has a bit for each

// Bit i stands for the model's tensor i.
using TensorSet = uint64_t;
constexpr TensorSet TensorBit(int tensor) { return TensorSet{1} << tensor; }
// The first num_tensors, which are kMaxTensors at most.
constexpr TensorSet AllTensors(size_t num_tensors) {
  return num_tensors == 0 ? 0 : ~TensorSet{0} >> (static_cast<size_t>(kMaxTensors) - num_tensors);
}

// The kinds of things that a tensor's rows belong to.
enum class TensorRows { kPoints, kSites, kSamples, kCells };

// A tensor that a model can answer with.
struct TensorInfo {
  std::string name;
  TensorRows rows = TensorRows::kPoints;
  int32_t channels = 0;
  std::vector<double> unit = {};    // of sites: voxels from one site to the next, one per axis; 0: beyond 64 bits
  std::vector<int64_t> cells = {};  // of cells: the size of each axis
};

// One sample's rows of a tensor.
struct OutputTensor {
  TensorInfo info;
  DType dtype = DType::kFloat32;  // or kFloat16
  std::string bytes = {};         // [num_rows, channels], little endian
  std::string coordinates = {};   // of sites: [num_rows, axes] int32, little endian, in units of the level

  int64_t row_bytes() const { return info.channels * SizeOf(dtype); }
  int64_t num_rows() const { return static_cast<int64_t>(bytes.size()) / row_bytes(); }
  // [num_rows, channels]; of cells [size of each axis..., channels].
  std::vector<int64_t> Shape() const;
};

// Returns float32 values as IEEE 754 binary16, rounded to nearest, ties to even: magnitudes of 65520 and more become
// infinite, those below 2^-25 become 0, NaN stays NaN.
std::string Float16Bytes(const std::string& float32_bytes);

}  // namespace voxserve
