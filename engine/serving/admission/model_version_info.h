#pragma once

// ModelVersionInfo describes a model version to clients. The functions below tell what follows from it for a request.

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
  std::vector<std::string> problems;  // all of them, of a failed version or of a ready one's broken successor
  std::string description;
  std::vector<ClassInfo> classes;
  int ignore_label = 255;
  std::vector<std::string> axes;  // the cloud's fields that are coordinates
  std::vector<FeatureInfo> features;
  int64_t max_points = 0;
  std::vector<float> voxel_size;
  int64_t num_parameters = 0;
  int priority_levels = 1;
  bool has_scores = false;  // beside labels
  bool has_labels = false;
  bool has_boxes = false;
  bool has_velocities = false;  // of the boxes
  std::vector<TensorInfo> tensors;
  std::string device;
  std::string digest;
  std::string plan_source;  // where the plan comes from by which it runs: "default", "model", "plan_dir", "tuned"
};

// Returns why a version is not ready: UNAVAILABLE (MODEL_LOADING, with a retry delay, or MODEL_FAILED with its
// problems).
absl::Status WhyNotReady(const ModelVersionInfo& info);

// INVALID_ARGUMENT (BAD_PRIORITY) where a ready model has no such priority level. Submit asks it, and FindOutputs.
absl::Status CheckPriority(const ModelVersionInfo& info, int priority);
// Returns the tensors that answer a request for these names. A request without names gets all of them where the model
// has no labels and no boxes, else none. INVALID_ARGUMENT (UNSUPPORTED_OUTPUT) where a ready model has no scores, or no
// tensor of a name.
absl::StatusOr<TensorSet> FindOutputs(const ModelVersionInfo& info, bool return_scores,
                                      const std::vector<std::string>& tensors);

// INVALID_ARGUMENT (RESPONSE_TOO_LARGE), naming the bytes, where the task's tensors alone are certain to take more than
// max_bytes: rows of points, samples and cells are known beforehand. max_bytes 0: there is no limit.
// task: with its tensor_set.
absl::Status CheckAnswerSize(const ModelVersionInfo& info, const InferTask& task, int64_t max_bytes);

// Returns true if the task costs what the version's requests cost by default: it asks for no tensors, or the version
// has nothing else. What a batch of others takes says nothing of those.
bool IsTypical(const ModelVersionInfo& info, const InferTask& task);

}  // namespace voxserve
