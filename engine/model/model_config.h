#pragma once

// ModelConfig says how a model is served: it is config.textproto with its defaults filled in.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "engine/model/problems.h"
#include "kernels/core/dtype.h"

namespace voxserve {

// The name of a configuration's file, in the model's folder and in those of its versions.
inline constexpr char kConfigFile[] = "config.textproto";

// VersionPolicy selects the versions in a model's folder that are served.
struct VersionPolicy {
  uint32_t latest = 0;            // this many versions are served, those with the highest numbers; 0: all
  std::vector<int64_t> specific;  // ascending; if not empty, these versions are served, and `latest` is ignored

  // versions: the versions in `present` that the policy selects. missing: the versions in `specific` that `present`
  // lacks.
  struct Choice {
    std::vector<int64_t> versions;
    std::vector<int64_t> missing;
  };
  // present: the versions in the folder, ascending.
  Choice Choose(const std::vector<int64_t>& present) const;
};

struct ModelConfig {
  enum class Precision { kFloat16, kFloat32, kTfloat32, kBfloat16, kInt8 };
  // Says what happens to a request with more than max_voxels voxels: it is refused, or only the voxels nearest to the
  // sensor are kept, or only the voxels that its points reach first are kept.
  enum class VoxelOverflow { kReject, kNearestFirst, kFirstSeen };
  struct Class {
    std::string name;
    uint32_t color_rgb = 0;  // 0xRRGGBB
  };
  // Says how requests wait and share batches.
  struct Batching {
    int64_t max_batch_points = 600'000;  // of all clouds in a batch together; a larger cloud runs alone
    int64_t max_batch_voxels = 0;        // of all clouds in a batch together; 0: only max_batch_points limits
    int max_batch_requests = 8;
    absl::Duration max_queue_delay = absl::Minutes(1);  // a request that has waited this long expires
    int64_t max_queue_requests = 0;                     // waiting requests; 0: as many as the engine allows
    int priority_levels = 1;
    int device_weight = 1;  // weight of the model's share of a device while other models also wait
    absl::Duration default_timeout = absl::Minutes(1);  // for requests without a deadline
  };

  std::vector<Class> classes;      // [num_classes], by id
  int ignore_label = 255;          // the label of points without a class; never a class's id
  int64_t max_points = 2'000'000;  // points a request may carry
  int64_t max_voxels = 0;          // voxels a request may occupy; 0: no limit
  VoxelOverflow voxel_overflow = VoxelOverflow::kReject;

  Precision precision = Precision::kFloat16;  // on a GPU; a CPU computes in float32, or in 8 bits with kInt8
  std::vector<std::string> float_nodes;       // with kInt8: the first nodes of layers that stay in floats
  Batching batching;

  VersionPolicy version_policy;

  std::string file = kConfigFile;  // what it was read from, as errors name it: relative to the model's folder

  // Returns the type of features and weights on a GPU; with kInt8 that of the layers that stay in floats.
  kernels::DType gpu_dtype() const;
  // Returns 1 if every class id and the ignore label fit into a byte, else 2.
  int bytes_per_label() const;
};

// Stands for the number of classes of a broken network. Checks that depend on the number are then skipped.
inline constexpr int kUnknownNumClasses = -1;

// Reads the text of config.textproto for a network of num_classes classes: 0 to 65,535, or kUnknownNumClasses. A
// network with 0 classes answers only with tensors, so the text may then give neither classes nor an ignore_label. An
// empty text gives the defaults; the default ignore_label is 255, or 65535 for more than 255 classes. A class without a
// name is "class N"; a class without a colour gets one that differs from its neighbours' colours. Adds what is wrong to
// `problems`, which name the text's file: its path relative to the model's folder.
ModelConfig ParseModelConfig(std::string_view textproto, int num_classes, Problems* problems,
                             const std::string& file = kConfigFile);

}  // namespace voxserve
