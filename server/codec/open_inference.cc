#include "server/codec/open_inference.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/base/error_reason.h"
#include "engine/base/numbers.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/tensor/box.h"
#include "engine/tensor/output_tensor.h"

namespace voxserve {
namespace {

using inference::InferParameter;
using inference::ModelInferRequest;
using inference::ModelInferResponse;

constexpr char kInt32[] = "INT32";
constexpr char kFp32[] = "FP32";
constexpr char kFp16[] = "FP16";
constexpr char kBoxScores[] = "box_scores";
constexpr char kBoxClasses[] = "box_classes";
constexpr char kOfTheInput[] = " of the input";
constexpr char kCoordinates[] = ".coordinates";  // follows the name of a tensor with a row per site (voxel)
constexpr int64_t kBoxNumbers = 9;
constexpr int64_t kAny = -1;

absl::Status Refuse(const std::string& why, std::string_view reason) {
  return WithReason(absl::InvalidArgumentError(why), reason);
}

// ---- parameters

// Returns the parameter's value if it is a whole number that is not negative, else nullopt.
std::optional<int64_t> CountOf(const InferParameter& value) {
  if (value.parameter_choice_case() == InferParameter::kUint64Param) {
    if (value.uint64_param() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(value.uint64_param());
  }
  const bool is_count = value.parameter_choice_case() == InferParameter::kInt64Param && value.int64_param() >= 0;
  return is_count ? std::make_optional(value.int64_param()) : std::nullopt;
}

// Returns the reason for which the server refuses a parameter of this name (of a request, an input or an output).
std::string WhyNotServed(absl::string_view name) {
  if (absl::StartsWith(name, "sequence_")) return "models keep no state; use voxserve.v1 InferStream for sweeps";
  if (name == "classification") return "labels are class ids already";
  return "the parameters are priority and timeout";
}

absl::Status BadParameter(const std::string& where, const std::string& name) {
  return Refuse(absl::StrCat("parameter ", Quoted(name), where, " is not served: ", WhyNotServed(name)),
                error_reason::kBadParameter);
}

// ---- the input

absl::Status BadInput(const std::string& why) { return Refuse(why, error_reason::kBadLayout); }

std::string ShapeText(const google::protobuf::RepeatedField<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Checks that the input's values come in one piece whose size agrees with the input's shape.
absl::Status CheckBytes(const ModelInferRequest::InferInputTensor& input, const TensorParts& parts, int64_t num_bytes,
                        int64_t point_step) {
  if (!input.contents().fp32_contents().empty() || parts.num_packed > 1) {
    return BadInput("fp32_contents must be packed, and come in one piece");
  }
  if (parts.num_packed > 0 && parts.num_raw > 0) {
    return BadInput("the values come twice: in raw_input_contents and in fp32_contents");
  }
  if (parts.num_raw > 1) {
    return BadInput(absl::StrCat("raw_input_contents has ", parts.num_raw, " entries for 1 input"));
  }
  if (parts.is_shared && parts.num_raw + parts.num_packed > 0) {
    return BadInput("the values come twice: in shared memory and in the message");
  }
  const bool is_packed = parts.num_packed > 0;
  const char* const place = parts.is_shared ? "shared memory" : is_packed ? "fp32_contents" : "raw_input_contents";
  if (is_packed && input.datatype() != kFp32) {
    return BadInput(absl::StrCat("values of ", input.datatype(), " come in raw_input_contents, not in fp32_contents"));
  }
  const int64_t num_points = input.shape(0);
  const bool overflows = num_points > std::numeric_limits<int64_t>::max() / point_step;
  if (!overflows && num_points * point_step == num_bytes) return absl::OkStatus();
  return BadInput(absl::StrCat("an input of shape ", ShapeText(input.shape()), " and datatype ", input.datatype(),
                               " takes ", overflows ? "more than 2^63" : absl::StrCat(num_points * point_step),
                               " bytes, ", place, " has ", num_bytes));
}

absl::Status TranslateInput(const ModelInferRequest& message, const TensorParts& parts, int64_t num_bytes,
                            const ModelVersionInfo& model, v1::PointCloud* cloud) {
  if (message.inputs().empty()) {
    return Refuse("the request has no input; a model takes one, \"points\"", error_reason::kMissingCloud);
  }
  for (const auto& input : message.inputs()) {
    if (input.name() != kPointsInput) {
      return BadInput(absl::StrCat("there is no input ", Quoted(input.name()), "; a model takes one, \"points\""));
    }
  }
  if (message.inputs_size() > 1) return BadInput(absl::StrCat("\"points\" comes ", message.inputs_size(), " times"));
  const ModelInferRequest::InferInputTensor& input = message.inputs(0);
  RETURN_IF_ERROR(ParseSharedMemory(input.parameters(), kOfTheInput).status());
  const bool is_half = input.datatype() == kFp16;
  if (!is_half && input.datatype() != kFp32) {
    return BadInput(absl::StrCat("\"points\" has datatype ", Quoted(input.datatype()), ", must be FP32 or FP16"));
  }
  const std::vector<std::string> columns = ColumnNames(model);
  const int num_required = NumRequiredColumns(model);
  const int64_t num_columns = input.shape_size() == 2 ? input.shape(1) : kAny;
  if (num_columns < num_required || num_columns > static_cast<int64_t>(columns.size()) || input.shape(0) < 0) {
    const std::string optional =
        num_required < static_cast<int>(columns.size())
            ? absl::StrCat("; those behind the first ", num_required, " have defaults and may be left out")
            : "";
    return BadInput(absl::StrCat("\"points\" has shape ", ShapeText(input.shape()), ", model ", Quoted(model.name),
                                 " takes [N, ", columns.size(), "]: ", absl::StrJoin(columns, ", "), optional));
  }
  const int64_t value_bytes = is_half ? 2 : 4;
  RETURN_IF_ERROR(CheckBytes(input, parts, num_bytes, num_columns * value_bytes));
  cloud->set_num_points(static_cast<uint64_t>(input.shape(0)));
  cloud->set_point_step(static_cast<uint32_t>(num_columns * value_bytes));
  for (int64_t i = 0; i < num_columns; ++i) {
    v1::PointField& field = *cloud->add_fields();
    field.set_name(columns[static_cast<size_t>(i)]);
    field.set_offset(static_cast<uint32_t>(i * value_bytes));
    field.set_type(is_half ? v1::POINT_FIELD_TYPE_FLOAT16 : v1::POINT_FIELD_TYPE_FLOAT32);
  }
  return absl::OkStatus();
}

// ---- outputs

// Returns the model's tensor for an output name. The name is a tensor's name, or for a tensor with a row per site the
// tensor's name and ".coordinates". Returns nullptr if no tensor matches.
const TensorInfo* TensorOf(const ModelVersionInfo& model, std::string_view name) {
  for (const TensorInfo& tensor : model.tensors) {
    if (name == tensor.name) return &tensor;
    if (tensor.rows == TensorRows::kSites && name == absl::StrCat(tensor.name, kCoordinates)) return &tensor;
  }
  return nullptr;
}

absl::Status TranslateOutputs(const ModelInferRequest& message, const ModelVersionInfo& model,
                              v1::InferRequest* request) {
  const std::vector<OpenInferenceOutput> outputs = OutputsOf(model);
  absl::flat_hash_set<std::string_view> tensors;
  for (const auto& asked : message.outputs()) {
    const std::string where = absl::StrCat(" of the output ", Quoted(asked.name()));
    RETURN_IF_ERROR(ParseSharedMemory(asked.parameters(), where).status());
    const auto named = [&](const OpenInferenceOutput& output) { return output.name == asked.name(); };
    if (std::none_of(outputs.begin(), outputs.end(), named)) {
      const auto append = [](std::string* out, const OpenInferenceOutput& output) { out->append(output.name); };
      return Refuse(absl::StrCat("model ", Quoted(model.name), " has no output ", Quoted(asked.name()), "; it has ",
                                 absl::StrJoin(outputs, ", ", append)),
                    error_reason::kUnsupportedOutput);
    }
    if (model.has_scores && asked.name() == NamedOutput::kScores) {
      request->set_return_scores(true);
    } else if (const TensorInfo* tensor = TensorOf(model, asked.name());
               tensor != nullptr && tensors.insert(tensor->name).second) {
      request->add_outputs(tensor->name);
    }
  }
  return absl::OkStatus();
}

std::vector<int64_t> ShapeOf(const TensorInfo& tensor) {
  std::vector<int64_t> shape = tensor.cells;
  if (tensor.rows != TensorRows::kCells) shape = {tensor.rows == TensorRows::kSamples ? 1 : kAny};
  shape.push_back(tensor.channels);
  return shape;
}

// ---- responses

class ResponseWriter {
 public:
  ResponseWriter(const std::vector<std::string>& outputs, ModelInferResponse* response)
      : outputs_(outputs), response_(response) {}

  bool Wants(std::string_view name) const {
    return outputs_.empty() || std::find(outputs_.begin(), outputs_.end(), name) != outputs_.end();
  }

  void Add(std::string name, const char* datatype, const std::vector<int64_t>& shape, std::string bytes) {
    ModelInferResponse::InferOutputTensor& output = *response_->add_outputs();
    output.set_name(std::move(name));
    output.set_datatype(datatype);
    output.mutable_shape()->Add(shape.begin(), shape.end());
    response_->add_raw_output_contents(std::move(bytes));
  }

  void AddLabels(const NamedOutput& labels) {
    if (!Wants(labels.name)) return;
    const int64_t num_labels = labels.num_rows();
    std::string bytes(static_cast<size_t>(num_labels) * sizeof(int32_t), '\0');
    auto* const values = reinterpret_cast<int32_t*>(bytes.data());
    if (labels.row_bytes() == 1) {
      std::copy_n(labels.values<uint8_t>().begin(), num_labels, values);
    } else {
      std::copy_n(labels.values<uint16_t>().begin(), num_labels, values);
    }
    Add(labels.name, kInt32, {num_labels}, std::move(bytes));
  }

  void AddBoxes(const NamedOutput& boxes) {
    const int64_t num_boxes = boxes.num_rows();
    std::string numbers, scores, classes;
    for (int64_t i = 0; i < num_boxes; ++i) {
      const Box box = BoxOf(boxes.values<float>().data() + i * boxes.columns);
      for (const float value :
           {box.x, box.y, box.z, box.length, box.width, box.height, box.yaw, box.velocity_x, box.velocity_y}) {
        Append(value, &numbers);
      }
      Append(box.score, &scores);
      Append(box.class_id, &classes);
    }
    if (Wants(boxes.name)) Add(boxes.name, kFp32, {num_boxes, kBoxNumbers}, std::move(numbers));
    if (Wants(kBoxScores)) Add(kBoxScores, kFp32, {num_boxes}, std::move(scores));
    if (Wants(kBoxClasses)) Add(kBoxClasses, kInt32, {num_boxes}, std::move(classes));
  }

  void AddTensor(OutputTensor& tensor) {
    const std::string coordinates = absl::StrCat(tensor.info.name, kCoordinates);
    if (tensor.info.rows == TensorRows::kSites && Wants(coordinates)) {
      const auto num_axes = static_cast<int64_t>(tensor.info.unit.size());
      Add(coordinates, kInt32, {tensor.num_rows(), num_axes}, std::move(tensor.coordinates));
    }
    const std::vector<int64_t> shape = tensor.Shape();  // computed from the bytes, which the next line moves away
    if (Wants(tensor.info.name)) Add(tensor.info.name, kFp32, shape, std::move(tensor.bytes));
  }

 private:
  template <typename Value>
  static void Append(Value value, std::string* bytes) {
    bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  const std::vector<std::string>& outputs_;
  ModelInferResponse* const response_;
};

}  // namespace

absl::StatusOr<int64_t> ParseModelVersion(std::string_view text) {
  if (text.empty()) return 0;
  int64_t version = 0;
  // "01" is no name of a version's folder either.
  if (ParseInteger(absl::string_view(text.data(), text.size()), &version) && version > 0 && text[0] != '0') {
    return version;
  }
  return Refuse(
      absl::StrCat("the model's version is ", Quoted(std::string(text)), ", must be a whole number from 1, or empty"),
      error_reason::kBadParameter);
}

absl::StatusOr<std::optional<SharedMemoryUse>> ParseSharedMemory(
    const google::protobuf::Map<std::string, InferParameter>& parameters, const std::string& where) {
  if (parameters.empty()) return std::optional<SharedMemoryUse>();
  SharedMemoryUse use;
  // A protobuf map has no order. Sorted parameters give the same error in every run.
  const std::map<std::string, InferParameter> ordered(parameters.begin(), parameters.end());
  for (const auto& [name, value] : ordered) {
    const std::optional<int64_t> count = CountOf(value);
    if (name == "shared_memory_region") {
      use.region = value.string_param();
    } else if (name != "shared_memory_byte_size" && name != "shared_memory_offset") {
      return BadParameter(where, name);
    } else if (!count.has_value()) {
      return Refuse(absl::StrCat("parameter ", Quoted(name), where, " must be a whole number from 0"),
                    error_reason::kBadParameter);
    } else {
      (name == "shared_memory_offset" ? use.offset : use.num_bytes) = *count;
    }
  }
  if (use.region.empty()) {
    return Refuse(absl::StrCat("parameter \"shared_memory_region\"", where, " names no region"),
                  error_reason::kBadParameter);
  }
  return use;
}

absl::StatusOr<OpenInferenceParameters> ParseParameters(const ModelInferRequest& message) {
  OpenInferenceParameters parameters;
  for (const auto& [name, value] : message.parameters()) {
    const std::optional<int64_t> count = CountOf(value);
    if (name == "priority") {
      if (!count.has_value()) {
        return Refuse("parameter \"priority\" must be a whole number from 0", error_reason::kBadParameter);
      }
      // The protocol's most urgent level is 1; ours is 0.
      parameters.priority =
          static_cast<int>(std::min<int64_t>(std::max<int64_t>(*count, 1) - 1, std::numeric_limits<int>::max()));
    } else if (name == "timeout") {
      if (!count.has_value() || *count == 0) {
        return Refuse("parameter \"timeout\" must be a whole number of microseconds from 1",
                      error_reason::kBadParameter);
      }
      parameters.timeout = absl::Microseconds(*count);
    } else if (name == "triton_enable_empty_final_response") {
      parameters.wants_final_mark = value.bool_param();
    } else {
      return BadParameter("", name);
    }
  }
  return parameters;
}

absl::Status CheckRepository(const std::string& name) {
  if (name.empty()) return absl::OkStatus();
  return Refuse(absl::StrCat("there is no repository ", Quoted(name), "; the server has one, without a name"),
                error_reason::kBadParameter);
}

std::vector<std::string> ColumnNames(const ModelVersionInfo& model) {
  std::vector<std::string> names = model.axes;
  for (const FeatureInfo& feature : model.features) {
    if (std::find(names.begin(), names.end(), feature.name) == names.end()) names.push_back(feature.name);
  }
  return names;
}

int NumRequiredColumns(const ModelVersionInfo& model) {
  const std::vector<std::string> names = ColumnNames(model);
  size_t num_required = names.size();
  const auto has_default = [&](const std::string& name) {
    return std::any_of(model.features.begin(), model.features.end(),
                       [&](const FeatureInfo& feature) { return feature.name == name && feature.has_default; });
  };
  while (num_required > model.axes.size() && has_default(names[num_required - 1])) --num_required;
  return static_cast<int>(num_required);
}

std::vector<OpenInferenceOutput> OutputsOf(const ModelVersionInfo& model) {
  std::vector<OpenInferenceOutput> outputs;
  if (model.has_labels)
    outputs.push_back({.name = std::string(NamedOutput::kLabels), .datatype = kInt32, .shape = {kAny}});
  if (model.has_scores) {
    outputs.push_back(
        {.name = std::string(NamedOutput::kScores), .datatype = kFp32, .shape = {kAny, kAny}, .is_default = false});
  }
  if (model.has_boxes) {
    outputs.push_back({.name = std::string(NamedOutput::kBoxes), .datatype = kFp32, .shape = {kAny, kBoxNumbers}});
    outputs.push_back({.name = kBoxScores, .datatype = kFp32, .shape = {kAny}});
    outputs.push_back({.name = kBoxClasses, .datatype = kInt32, .shape = {kAny}});
  }
  const bool is_default = outputs.empty();
  for (const TensorInfo& tensor : model.tensors) {
    outputs.push_back({.name = tensor.name, .datatype = kFp32, .shape = ShapeOf(tensor), .is_default = is_default});
    if (tensor.rows != TensorRows::kSites) continue;
    outputs.push_back({.name = absl::StrCat(tensor.name, kCoordinates),
                       .datatype = kInt32,
                       .shape = {kAny, static_cast<int64_t>(tensor.unit.size())},
                       .is_default = is_default});
  }
  return outputs;
}

absl::Status TranslateRequest(const ModelInferRequest& message, const TensorParts& parts, int64_t num_bytes,
                              const ModelVersionInfo& model, v1::InferRequest* request) {
  RETURN_IF_ERROR(TranslateInput(message, parts, num_bytes, model, request->mutable_cloud()));
  return TranslateOutputs(message, model, request);
}

void EncodeOpenInference(InferResult& result, const std::vector<std::string>& outputs, ModelInferResponse* response) {
  response->set_model_name(result.model);
  response->set_model_version(absl::StrCat(result.version));
  auto& parameters = *response->mutable_parameters();
  parameters["device"].set_string_param(result.device);
  const std::array<std::pair<const char*, int64_t>, 7> counts = {{{"points_used", result.counts.used},
                                                                  {"points_invalid", result.counts.invalid},
                                                                  {"points_out_of_range", result.counts.out_of_range},
                                                                  {"points_dropped", result.counts.dropped},
                                                                  {"points_not_finite", result.counts.not_finite},
                                                                  {"boxes_not_finite", result.num_not_finite_boxes},
                                                                  {"voxels", result.counts.voxels}}};
  for (const auto& [name, count] : counts) parameters[name].set_int64_param(count);
  std::vector<std::string> warnings;
  for (const FeatureWarning& warning : result.warnings) {
    warnings.push_back(absl::StrCat(warning.feature, " is ", warning.smallest, " to ", warning.largest,
                                    ", but the model was trained on ", warning.range.low, " to ", warning.range.high));
  }
  if (!warnings.empty()) parameters["warnings"].set_string_param(absl::StrJoin(warnings, "; "));

  ResponseWriter writer(outputs, response);
  if (const NamedOutput* labels = result.Find(NamedOutput::kLabels)) writer.AddLabels(*labels);
  if (NamedOutput* scores = result.Find(NamedOutput::kScores); scores != nullptr && writer.Wants(scores->name)) {
    // The shape is computed from the bytes, which Add takes away.
    const std::vector<int64_t> shape = {scores->num_rows(), scores->columns};
    writer.Add(scores->name, kFp32, shape, std::move(scores->bytes));
  }
  if (const NamedOutput* boxes = result.Find(NamedOutput::kBoxes)) writer.AddBoxes(*boxes);
  for (OutputTensor& tensor : result.tensors) writer.AddTensor(tensor);
}

}  // namespace voxserve
