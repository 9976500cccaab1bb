#pragma once

// The command line of `infer`.

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
  // The flags, which write to this object.
  std::vector<Flag> Flags();
};

// Returns whether the answer is tensors: they are named, or the model has nothing else.
bool AsksTensors(const v1::ModelVersion& model, const InferArguments& arguments);

// Checks the parts of the command line that need no server. Sets the terminal's colours as the command line says.
absl::Status CheckInfer(const InferArguments& arguments, Terminal* terminal);

// Checks the parts of the command line that depend on the models. If a model is not ready, its outputs are not known,
// and the server reports the error. boxes_model: that of --boxes_model, if there is one.
absl::Status CheckInferFor(const v1::ModelVersion& model, const std::optional<v1::ModelVersion>& boxes_model,
                           const InferArguments& arguments, const std::vector<ScanJob>& jobs);

}  // namespace voxserve::client
