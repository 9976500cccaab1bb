#pragma once

// Translates the messages of the open inference protocol (proto/open_inference.proto) into the service's own request,
// and results into its response. Pure functions, any thread; nothing here waits.
//
// A model has one input, "points": [N, C] in FP32 or FP16, where a column is a field of the cloud (ColumnNames). Its
// outputs are, each only where the model has it:
//
//   labels       INT32 [N]       a class id for each point
//   scores       FP32 [N, K]     logits, only where they are asked for by name
//   boxes        FP32 [M, 9]     x, y, z, length, width, height, yaw, velocity_x, velocity_y (metres, radians, m/s)
//   box_scores   FP32 [M]        0 to 1
//   box_classes  INT32 [M]
//   NAME         FP32            a tensor of the network, in its own shape
//   NAME.coordinates  INT32 [S, axes]   where the rows of the tensor NAME are sites
//
// Errors are INVALID_ARGUMENT with the reasons MISSING_CLOUD (no input), BAD_LAYOUT (a wrong name, type, shape or size
// of an input), UNSUPPORTED_OUTPUT (a name that the model does not have) and BAD_PARAMETER (a parameter or a version
// that is not served). They name what came and what is expected.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/serving/engine.h"
#include "engine/tensor/infer_result.h"
#include "open_inference.pb.h"
#include "server/codec/message_parser.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve {

inline constexpr std::string_view kPointsInput = "points";

struct OpenInferenceParameters {
  int priority = 0;                                   // as in InferRequest: 0 is the most urgent
  absl::Duration timeout = absl::InfiniteDuration();  // from the request's arrival
  bool wants_final_mark = false;                      // of a stream: the response says that it is the last
};

// Where the values of an input or an output are, if its parameters name shared memory.
struct SharedMemoryUse {
  std::string region;
  int64_t offset = 0;  // from the region's begin
  int64_t num_bytes = 0;
};

// BAD_PARAMETER for a parameter that is not served. where: " of the input".
absl::StatusOr<std::optional<SharedMemoryUse>> ParseSharedMemory(
    const google::protobuf::Map<std::string, inference::InferParameter>& parameters, const std::string& where);

// An output as clients see it.
struct OpenInferenceOutput {
  std::string name;
  std::string datatype;        // "INT32" or "FP32"
  std::vector<int64_t> shape;  // -1: any size
  bool is_default = true;      // answered where the request names no output
};

// Returns the number of a version: "" is 0, the newest that is ready. BAD_PARAMETER for text that is no number from 1.
absl::StatusOr<int64_t> ParseModelVersion(std::string_view text);

// BAD_PARAMETER for a parameter that is not served, or whose value is of a wrong type or out of range.
absl::StatusOr<OpenInferenceParameters> ParseParameters(const inference::ModelInferRequest& message);

// BAD_PARAMETER for a repository's name: the server has one repository, without a name.
absl::Status CheckRepository(const std::string& name);

// Returns the names of the input's columns: the model's axes, then its other features in the network's order. The last
// columns may be left out where their features have defaults; NumRequiredColumns says how many may not.
std::vector<std::string> ColumnNames(const ModelVersionInfo& model);
int NumRequiredColumns(const ModelVersionInfo& model);

// Returns all outputs of a ready model.
std::vector<OpenInferenceOutput> OutputsOf(const ModelVersionInfo& model);

// Fills in the request's cloud and outputs for this ready model. parts, num_bytes: how the values came, as
// ParseModelInferRequest says; they become the cloud's data unchanged.
absl::Status TranslateRequest(const inference::ModelInferRequest& message, const TensorParts& parts, int64_t num_bytes,
                              const ModelVersionInfo& model, v1::InferRequest* request);

// Fills all of the response but the id. outputs: the names to answer with; empty: all that the result has. Moves the
// bytes of scores and tensors out of the result.
void EncodeOpenInference(InferResult& result, const std::vector<std::string>& outputs,
                         inference::ModelInferResponse* response);

}  // namespace voxserve
