#pragma once

// Tensor holds the values that one node of a model's network computed. They are unchanged, so they may be NaN or
// infinite.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

struct Tensor {
  std::string name;
  v1::TensorRows kind =
      v1::TENSOR_ROWS_UNSPECIFIED;  // a row is for: a point, a site (occupied voxel), the sample, a cell
  v1::ElementType type = v1::ELEMENT_TYPE_FLOAT32;  // or FLOAT16
  std::vector<uint64_t> shape;                      // [rows, channels]; for cells [size of each axis..., channels]
  std::string data;                                 // little endian, row after row
  std::string coordinate_bytes;                     // for sites: [rows, axes] int32
  std::vector<double> unit;                         // for sites: voxels per step of a coordinate, one value per axis

  // Return the values, row after row; empty if `type` is another type.
  absl::Span<const float> floats() const { return Values<float>(v1::ELEMENT_TYPE_FLOAT32, data); }
  absl::Span<const uint16_t> float16s() const { return Values<uint16_t>(v1::ELEMENT_TYPE_FLOAT16, data); }
  // Returns the coordinates of the sites, [rows, axes], in steps of the network's level (its stride): coordinate * unit
  // is the voxel index that the model's `voxelize` node makes.
  absl::Span<const int32_t> coordinates() const {
    return {reinterpret_cast<const int32_t*>(coordinate_bytes.data()), coordinate_bytes.size() / sizeof(int32_t)};
  }

 private:
  template <typename T>
  absl::Span<const T> Values(v1::ElementType wanted, const std::string& bytes) const {
    if (type != wanted) return {};
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

// The tensors that a request asks for. Without names the server returns all tensors of a model that has neither labels
// nor boxes, and no tensors of other models.
struct WantedTensors {
  std::vector<std::string> names = {};
  v1::ElementType type = v1::ELEMENT_TYPE_FLOAT32;
};

}  // namespace voxserve::client
