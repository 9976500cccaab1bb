#pragma once

// Makes the outputs of an inference from plain values, for tests and fakes that build answers without an engine.

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tensor/box.h"
#include "engine/tensor/infer_result.h"
#include "kernels/boxes/box_rows.h"

namespace voxserve {

// values: [rows, columns], whose type must be that of `dtype`.
template <typename T>
NamedOutput OutputOf(std::string_view name, DType dtype, int64_t columns, const std::vector<T>& values) {
  NamedOutput output{.name = std::string(name), .dtype = dtype, .columns = columns};
  output.bytes.assign(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  return output;
}

inline NamedOutput LabelsOf(const std::vector<uint8_t>& labels) {
  return OutputOf(NamedOutput::kLabels, DType::kUint8, 1, labels);
}

inline NamedOutput ScoresOf(const std::vector<float>& scores, int64_t num_classes = 1) {
  return OutputOf(NamedOutput::kScores, DType::kFloat32, num_classes, scores);
}

inline NamedOutput BoxesOf(const std::vector<Box>& boxes) {
  std::vector<float> rows;
  for (const Box& box : boxes) {
    const size_t begin = rows.size();
    rows.resize(begin + kernels::kBoxColumns);
    float* const row = rows.data() + begin;
    row[kernels::kBoxX] = box.x;
    row[kernels::kBoxY] = box.y;
    row[kernels::kBoxZ] = box.z;
    row[kernels::kBoxLength] = box.length;
    row[kernels::kBoxWidth] = box.width;
    row[kernels::kBoxHeight] = box.height;
    row[kernels::kBoxYaw] = box.yaw;
    row[kernels::kBoxVelocityX] = box.velocity_x;
    row[kernels::kBoxVelocityY] = box.velocity_y;
    row[kernels::kBoxScore] = box.score;
    row[kernels::kBoxClass] = static_cast<float>(box.class_id);
    row[kernels::kBoxQuery] = static_cast<float>(box.query + 1);
  }
  return OutputOf(NamedOutput::kBoxes, DType::kFloat32, kernels::kBoxColumns, rows);
}

}  // namespace voxserve
