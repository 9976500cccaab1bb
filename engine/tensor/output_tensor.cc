#include "engine/tensor/output_tensor.h"

#include <cstring>

#include "engine/tensor/float16.h"

namespace voxserve {

std::vector<int64_t> OutputTensor::Shape() const {
  std::vector<int64_t> shape = info.rows == TensorRows::kCells ? info.cells : std::vector<int64_t>{num_rows()};
  shape.push_back(info.channels);
  return shape;
}

std::string Float16Bytes(const std::string& float32_bytes) {
  std::string halves(float32_bytes.size() / 2, '\0');
  for (size_t i = 0; i < halves.size() / sizeof(uint16_t); ++i) {
    float value = 0;
    std::memcpy(&value, float32_bytes.data() + i * sizeof(float), sizeof(float));
    const uint16_t half = FloatToFloat16(value);
    std::memcpy(halves.data() + i * sizeof(uint16_t), &half, sizeof(half));
  }
  return halves;
}

}  // namespace voxserve
