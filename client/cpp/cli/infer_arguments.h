#pragma once

// InferArguments holds the command line of `voxserve-client infer`.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/cli/command.h"
#include "client/cpp/cli/scan_jobs.h"

namespace voxserve::client {

struct InferArguments {
  Connection connection;
  std::string model;
  int64_t version = 0;
  std::string boxes_model;  // "" for none
  std::string fields;
  bool compact = false;
  ScanPaths paths;
  bool preview = false;
  bool json = false;
  std::string color = "auto";
  int64_t concurrency = 4;
  int64_t sample = 0;
  int64_t sample_start = 0;
  std::string sample_use = "return";
  std::string outputs;
  std::string tensor_type = "float32";

  std::optional<FarthestPoints> Sample() const;
  WantedTensors Tensors() const;
  // Returns the flags, which write to this object.
  std::vector<Flag> Flags();
};

// Returns whether the request's answer is tensors: --outputs names some, or the model has no other outputs.
bool AsksTensors(const v1::ModelVersion& model, const InferArguments& arguments);

// Returns whether the model answers boxes and no labels.
bool HasBoxesAlone(const v1::ModelVersion& model);

// Checks the parts of the command line that need no server. Sets the terminal's colours by --color. Returns
// INVALID_ARGUMENT.
absl::Status CheckInfer(const InferArguments& arguments, Terminal* terminal);

// Checks the parts of the command line that depend on the models, and returns INVALID_ARGUMENT. If a model is not
// ready, its outputs are unknown and not checked; the server reports the error later. boxes_model: the model of
// --boxes_model, if given.
absl::Status CheckInferFor(const v1::ModelVersion& model, const std::optional<v1::ModelVersion>& boxes_model,
                           const InferArguments& arguments, const std::vector<ScanJob>& jobs);

}  // namespace voxserve::client
