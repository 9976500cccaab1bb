#pragma once

// How a model is served: config.textproto with its defaults filled in.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "engine/model/problems.h"
#include "kernels/core/dtype.h"

namespace voxserve {

// Which of the versions in a model's folder are served.
struct VersionPolicy {
  uint32_t latest = 0;            // so many of the highest numbers; 0: all
  std::vector<int64_t> specific;  // ascending; if not empty, these

  // Of `present` (ascending) those that the policy asks for, and of `specific` those that are missing there.
  struct Choice {
    std::vector<int64_t> versions;
    std::vector<int64_t> missing;
  };
  Choice Choose(const std::vector<int64_t>& present) const;
};

struct ModelConfig {
  enum class Precision { kFloat16, kFloat32, kTfloat32, kBfloat16 };
  enum class VoxelOverflow { kReject, kNearestFirst, kFirstSeen };
  struct Class {
    std::string name;
    uint32_t color_rgb = 0;  // 0xRRGGBB
  };
  // How requests share batches and wait.
  struct Batching {
    int64_t max_batch_points = 600'000;  // of all clouds of a batch; a larger cloud runs alone
    int64_t max_batch_voxels = 0;        // likewise; 0: as many as their points bring
    int max_batch_requests = 8;
    absl::Duration max_queue_delay = absl::Minutes(1);  // a request that has waited so long expires
    int64_t max_queue_requests = 0;                     // waiting; 0: as many as the engine allows
    int priority_levels = 1;
    int device_weight = 1;  // of the model's share of a device, beside other models' that wait
    absl::Duration default_timeout = absl::Minutes(1);  // of requests without a deadline
  };

  std::vector<Class> classes;      // [num_classes], by id
  int ignore_label = 255;          // never a class's id
  int64_t max_points = 2'000'000;  // points a request may carry
  int64_t max_voxels = 0;          // voxels a request may occupy; 0: no limit
  VoxelOverflow voxel_overflow = VoxelOverflow::kReject;

  Precision precision = Precision::kFloat16;  // of a GPU
  Batching batching;

  VersionPolicy version_policy;

  // Of features and weights on a GPU.
  kernels::DType gpu_dtype() const;
  // 1 where every class's id and the ignore label fit a byte, else 2.
  int bytes_per_label() const;
};

// For a broken network: what depends on the number of its classes is not checked then.
inline constexpr int kUnknownNumClasses = -1;

// Reads config.textproto for a network of num_classes classes (0 to 65,535; 0: it answers with tensors alone,
// so neither classes nor an ignore_label may be given); "" gives the defaults. Classes without an
// entry are "class N" with a colour that differs from its neighbours'. Adds what is wrong to `problems`.
ModelConfig ParseModelConfig(std::string_view textproto, int num_classes, Problems* problems);

}  // namespace voxserve
