#pragma once

// ModelVersionInfo describes a model version to clients. The functions below check requests against it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
};

struct ModelVersionInfo {
  std::string name;
  int64_t version = 0;
  ModelState state = ModelState::kLoading;
  std::vector<std::string> problems;  // of a failed version, or of a ready version's broken successor
  std::string description;
  std::vector<ClassInfo> classes;
  int ignore_label = 255;
  std::vector<std::string> axes;  // the cloud's fields that are coordinates
  std::vector<FeatureInfo> features;
  int64_t max_points = 0;
  std::vector<float> voxel_size;
  int64_t num_parameters = 0;
  int priority_levels = 1;
  bool has_scores = false;  // scores per point, beside labels
  bool has_labels = false;
  bool has_boxes = false;
  bool has_velocities = false;  // boxes have velocities
  std::vector<TensorInfo> tensors;
  std::string device;
  std::string digest;
  std::string plan_source;  // the source of the plan in use: "default", "model", "plan_dir", "tuned"
};

// Returns why a version is not ready: UNAVAILABLE (MODEL_LOADING, with a retry delay, or MODEL_FAILED with its
// problems).
absl::Status WhyNotReady(const ModelVersionInfo& info);

// Returns INVALID_ARGUMENT (BAD_PRIORITY) if a ready model has no such priority level.
absl::Status CheckPriority(const ModelVersionInfo& info, int priority);
// Returns the tensors to answer a request with. A request without names gets all of them if the model has no labels and
// no boxes, else none. INVALID_ARGUMENT (UNSUPPORTED_OUTPUT) if a ready model has no scores, or no tensor of a name.
absl::StatusOr<TensorSet> FindOutputs(const ModelVersionInfo& info, bool return_scores,
                                      const std::vector<std::string>& tensors);

// Returns INVALID_ARGUMENT (RESPONSE_TOO_LARGE), naming the bytes, if the task's tensors alone are certain to exceed
// max_bytes: the numbers of points, samples and cells are known in advance. max_bytes 0: there is no limit. The task's
// tensor_set must be set.
absl::Status CheckAnswerSize(const ModelVersionInfo& info, const InferTask& task, int64_t max_bytes);

// Returns true if the task costs as much as the version's default requests: it asks for no tensors, or the version has
// no other outputs. The measurements of other batches must not be learned as typical.
bool IsTypical(const ModelVersionInfo& info, const InferTask& task);

}  // namespace voxserve
