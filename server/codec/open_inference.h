#pragma once

// Translates a ModelInferRequest of the open inference protocol (proto/open_inference.proto) into the service's own
// request, and the engine's result into a ModelInferResponse. The functions keep no state, so any thread may call them.
// None of them waits.
//
// A model has one input, "points": [N, C] in FP32 or FP16, where a row is a point and a column is a field of the cloud
// (ColumnNames). A model has some of these outputs:
//
//   labels       INT32 [N]       a class id for each point
//   scores       FP32 [N, K]     logits of K classes; sent only if the request names this output
//   boxes        FP32 [M, 9]     x, y, z, length, width, height, yaw, velocity_x, velocity_y (metres, radians, m/s)
//   box_scores   FP32 [M]        0 to 1
//   box_classes  INT32 [M]       class ids
//   NAME         FP32            a tensor of the network, in its own shape
//   NAME.coordinates  INT32 [S, axes]   only if the rows of the tensor NAME are sites (occupied voxels): their
//                                       coordinates
//
// If the model has labels or boxes, its tensors (NAME and NAME.coordinates) too are sent only if the request names
// them.
//
// Errors are INVALID_ARGUMENT. Their text names the value that came and the values that are expected. The reasons are:
// - MISSING_CLOUD: the request has no input.
// - BAD_LAYOUT: the input has a wrong name, type, shape or size.
// - UNSUPPORTED_OUTPUT: the request names an output that the model does not have.
// - BAD_PARAMETER: the request has a parameter or a version that the server does not support.

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
  int priority = 0;                                   // 0 is the most urgent; the protocol's own numbers begin at 1
  absl::Duration timeout = absl::InfiniteDuration();  // from the request's arrival
  bool wants_final_mark = false;  // the response gets the parameter triton_final_response, which is always true
};

// The place in shared memory (server/calls/shared_memory.h) from which an input's values are read, or to which an
// output's values are written.
struct SharedMemoryUse {
  std::string region;
  int64_t offset = 0;  // bytes from the region's begin
  int64_t num_bytes = 0;
};

// Returns the place that the parameters of an input or an output name, or nullopt if there are no parameters.
// BAD_PARAMETER if a parameter has another purpose or a wrong value. where: the owner of the parameters, for the
// error's text: " of the input".
absl::StatusOr<std::optional<SharedMemoryUse>> ParseSharedMemory(
    const google::protobuf::Map<std::string, inference::InferParameter>& parameters, const std::string& where);

// Describes an output to clients.
struct OpenInferenceOutput {
  std::string name;
  std::string datatype;        // "INT32" or "FP32"
  std::vector<int64_t> shape;  // -1: any size
  bool is_default = true;      // the response has it if the request names no output
};

// Returns the number of a version; 0, the newest version that is ready, for "". BAD_PARAMETER if the text is not a
// whole number of at least 1.
absl::StatusOr<int64_t> ParseModelVersion(std::string_view text);

// Returns the request's own parameters. BAD_PARAMETER if the server does not support one of them, or if its value has a
// wrong type or is out of range.
absl::StatusOr<OpenInferenceParameters> ParseParameters(const inference::ModelInferRequest& message);

// Returns BAD_PARAMETER unless the name is "": the server has one repository, without a name.
absl::Status CheckRepository(const std::string& name);

// ColumnNames returns the names of the input's columns: the model's axes, then its other features in the network's
// order. A client may leave out columns at the end whose features have defaults; it must send the first
// NumRequiredColumns.
std::vector<std::string> ColumnNames(const ModelVersionInfo& model);
int NumRequiredColumns(const ModelVersionInfo& model);

// Returns all outputs of a ready model.
std::vector<OpenInferenceOutput> OutputsOf(const ModelVersionInfo& model);

// Sets the layout of the request's cloud, and the outputs that it asks for. model: must be ready. parts, num_bytes: the
// forms in which the values came, and their size. The values themselves are the cloud's data, unchanged.
absl::Status TranslateRequest(const inference::ModelInferRequest& message, const TensorParts& parts, int64_t num_bytes,
                              const ModelVersionInfo& model, v1::InferRequest* request);

// Fills the response, except for its id. outputs: the names of the outputs to send; empty: all that the result has.
// Moves the bytes of scores and tensors out of the result, so that they are not copied.
void EncodeOpenInference(InferResult& result, const std::vector<std::string>& outputs,
                         inference::ModelInferResponse* response);

}  // namespace voxserve
