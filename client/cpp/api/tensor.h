#pragma once

// Tensor holds the values of one node of a model's network, unchanged: they may be NaN or infinite.

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
  v1::TensorRows kind = v1::TENSOR_ROWS_UNSPECIFIED;  // what a row belongs to: a point, a site, the sample, a cell
  v1::ElementType type = v1::ELEMENT_TYPE_FLOAT32;    // or FLOAT16
  std::vector<uint64_t> shape;                        // [rows, channels]; for cells [size of each axis..., channels]
  std::string data;                                   // little endian, row after row
  std::string coordinate_bytes;                       // for sites: [rows, axes] int32
  std::vector<double> unit;                           // for sites: the step of a coordinate in voxels, one per axis

  // Return the values, row after row; empty if they have another type.
  absl::Span<const float> floats() const { return Values<float>(v1::ELEMENT_TYPE_FLOAT32, data); }
  absl::Span<const uint16_t> float16s() const { return Values<uint16_t>(v1::ELEMENT_TYPE_FLOAT16, data); }
  // Returns the coordinates of sites, [rows, axes], in units of the level: coordinate * unit is a voxel's index.
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

// The tensors that a request asks for. Without names the server chooses: all tensors of a model that has neither labels
// nor boxes, else none.
struct WantedTensors {
  std::vector<std::string> names = {};
  v1::ElementType type = v1::ELEMENT_TYPE_FLOAT32;
};

}  // namespace voxserve::client
