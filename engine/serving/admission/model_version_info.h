#pragma once

// ModelVersionInfo describes a model version to clients. The functions below check requests against it; the engine
// calls them before it queues a request. ModelTable owns one for each listed version.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/model/reach.h"
#include "engine/tensor/feature_warning.h"
#include "engine/tensor/infer_task.h"
#include "engine/tensor/output_tensor.h"

namespace voxserve {

enum class ModelState { kLoading, kReady, kFailed };

struct ClassInfo {
  int id = 0;
  std::string name;
  uint32_t color_rgb = 0;  // 0xRRGGBB
};

struct FeatureInfo {
  std::string name;
  std::string unit;
  bool has_default = false;
  float default_value = 0;
  std::optional<ValueRange> range = std::nullopt;  // values that the network was trained on; none: any
};

struct ModelVersionInfo {
  std::string name;
  int64_t version = 0;
  ModelState state = ModelState::kLoading;
  std::vector<std::string> problems;  // of a failed version, or of a ready version's broken successor
  std::string description;
  std::vector<ClassInfo> classes;
  int ignore_label = 255;
  std::vector<std::string> axes;      // the cloud's fields that are coordinates
  std::vector<FeatureInfo> features;  // the cloud's fields that are input features
  int64_t max_points = 0;             // of one request, all its sweeps together
  int64_t max_voxels = 0;             // of one request; 0: no limit
  ModelConfig::VoxelOverflow voxel_overflow = ModelConfig::VoxelOverflow::kReject;
  std::optional<Reach> reach;     // of a ready version
  std::vector<float> voxel_size;  // by axis, in the unit of the cloud's coordinates
  int64_t num_parameters = 0;
  int priority_levels = 1;
  bool has_scores = false;  // scores per point, beside labels
  bool has_labels = false;
  bool has_boxes = false;
  bool has_velocities = false;      // boxes have velocities
  std::vector<TensorInfo> tensors;  // the tensors that a request may ask for
  std::string device;               // the ids of all devices that run the version: "cpu", "cuda:0,cuda:1"
  std::string digest;               // of the network and its weights
  std::string plan_source;  // where the first device's plan comes from: "default", "model", "plan_dir" or "tuned"
};

// Returns the error for a request to a version that is not ready. It is UNAVAILABLE: MODEL_LOADING, with a retry delay,
// or MODEL_FAILED, with the version's problems.
absl::Status WhyNotReady(const ModelVersionInfo& info);

// Returns INVALID_ARGUMENT (BAD_PRIORITY) if the model has no such priority level. The version must be ready.
absl::Status CheckPriority(const ModelVersionInfo& info, int priority);
// Returns the tensors to answer a request with. tensors: the names that the request asks for. A request without names
// gets all tensors if the model has no labels and no boxes, else none. Returns INVALID_ARGUMENT (UNSUPPORTED_OUTPUT) if
// the request asks for scores or for a tensor that the model does not have. The version must be ready.
absl::StatusOr<TensorSet> FindOutputs(const ModelVersionInfo& info, bool return_scores,
                                      const std::vector<std::string>& tensors);

// Returns INVALID_ARGUMENT (RESPONSE_TOO_LARGE) if the task's tensors alone are certain to exceed max_bytes. Counts the
// tensors with a row for each point, sample or cell of a dense grid, whose numbers are known in advance; a tensor with
// a row for each voxel counts as empty. The message names the bytes. max_bytes 0: there is no limit. The task's
// tensor_set must be set.
absl::Status CheckAnswerSize(const ModelVersionInfo& info, const InferTask& task, int64_t max_bytes);

// Returns true if the task costs as much as a default request to the version: the task asks for no tensors, or tensors
// are the version's only outputs. The models of latency and memory must not learn from batches of other tasks.
bool IsTypical(const ModelVersionInfo& info, const InferTask& task);

}  // namespace voxserve
