#pragma once

// Tensors that a model answers with: values of any node of its network, as they are. NaN and infinite ones too.

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
  std::vector<uint64_t> shape;                        // [rows, channels]; of cells [size of each axis..., channels]
  std::string data;                                   // little endian, row after row
  std::string coordinate_bytes;                       // of sites: [rows, axes] int32
  std::vector<double> unit;                           // of sites: voxels from one to the next, one per axis

  // The values, row after row; empty where they are of another type.
  absl::Span<const float> floats() const { return Values<float>(v1::ELEMENT_TYPE_FLOAT32, data); }
  absl::Span<const uint16_t> float16s() const { return Values<uint16_t>(v1::ELEMENT_TYPE_FLOAT16, data); }
  // [rows, axes] of sites, in units of the level: coordinate * unit is the index of a voxel.
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

// The tensors that a request asks for. None: those that the server answers to whoever names none, which are all of a
// model that has neither labels nor boxes.
struct WantedTensors {
  std::vector<std::string> names = {};
  v1::ElementType type = v1::ELEMENT_TYPE_FLOAT32;
};

}  // namespace voxserve::client
