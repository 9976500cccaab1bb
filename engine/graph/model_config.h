#pragma once

// How a model is served: config.textproto with its defaults filled in.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/problems.h"
#include "kernels/dtype.h"

namespace voxserve {

struct ModelConfig {
  enum class Precision { kFloat16, kFloat32, kTfloat32, kBfloat16 };
  enum class VoxelOverflow { kReject, kNearestFirst };
  struct Class {
    std::string name;
    uint32_t color_rgb = 0;  // 0xRRGGBB
  };

  std::vector<Class> classes;      // [num_classes], by id
  int ignore_label = 255;          // never a class's id
  int64_t max_points = 2'000'000;  // points a request may carry
  int64_t max_voxels = 0;          // voxels a request may occupy; 0: no limit
  VoxelOverflow voxel_overflow = VoxelOverflow::kReject;

  Precision precision = Precision::kFloat16;  // of a GPU

  // Of features and weights on a GPU.
  kernels::DType gpu_dtype() const;
  // 1 where every class's id and the ignore label fit a byte, else 2.
  int bytes_per_label() const;
};

// Of a network that is broken: what depends on the number of its classes is not checked then.
inline constexpr int kUnknownNumClasses = 0;

// Reads config.textproto for a network of num_classes classes (1 to 65,535); "" gives the defaults. Classes without an
// entry are "class N" with a colour that differs from its neighbours'. Adds what is wrong to `problems`.
ModelConfig ParseModelConfig(std::string_view textproto, int num_classes, Problems* problems);

}  // namespace voxserve
