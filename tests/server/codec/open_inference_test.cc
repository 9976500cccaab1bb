#include "server/codec/open_inference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/quoted.h"
#include "server/codec/codec.h"
#include "tests/server/codec/wire_bytes.h"
#include "tests/support/named_outputs.h"

namespace voxserve::open_inference_test {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Returns a model that answers labels and scores, and whose last feature has a default.
ModelVersionInfo Labels() {
  return {.name = "mink",
          .version = 3,
          .state = ModelState::kReady,
          .axes = {"x", "y", "z"},
          .features = {{.name = "x", .unit = "m"},
                       {.name = "y", .unit = "m"},
                       {.name = "z", .unit = "m"},
                       {.name = "intensity", .unit = "1"},
                       {.name = "age", .unit = "s", .has_default = true}},
          .has_scores = true,
          .has_labels = true,
          .tensors = {{.name = "coarse", .rows = TensorRows::kSites, .channels = 8, .unit = {2, 2, 2}},
                      {.name = "whole", .rows = TensorRows::kSamples, .channels = 5}}};
}

ModelVersionInfo Detector() {
  ModelVersionInfo model = Labels();
  model.has_scores = model.has_labels = false;
  model.has_boxes = true;
  model.tensors.clear();
  return model;
}

ModelInferRequest RequestOf(const std::vector<int64_t>& shape, const std::string& datatype = "FP32") {
  ModelInferRequest request;
  request.set_model_name("mink");
  auto& input = *request.add_inputs();
  input.set_name("points");
  input.set_datatype(datatype);
  input.mutable_shape()->Add(shape.begin(), shape.end());
  return request;
}

// Serialises the message, parses it and translates it to a request, as the service does. data: receives the input's
// values.
absl::Status Translate(const ModelInferRequest& message, v1::InferRequest* request, HostBuffer* data,
                       const ModelVersionInfo& model = Labels()) {
  ModelInferRequest parsed;
  TensorParts parts;
  const absl::Status status =
      ParseModelInferRequest(OneSlice(message.SerializeAsString()), HostBuffer::Create, &parsed, data, &parts);
  if (!status.ok()) return status;
  return TranslateRequest(parsed, parts, data->size(), model, request);
}

void ExpectRefused(const ModelInferRequest& message, std::string_view reason, const std::string& text,
                   const ModelVersionInfo& model = Labels()) {
  v1::InferRequest request;
  HostBuffer data;
  const absl::Status status = Translate(message, &request, &data, model);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ReasonOf(status), reason);
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

std::string BytesOf(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST(OpenInferenceRequestTest, RawValuesBecomeACloudUnchanged) {
  ModelInferRequest message = RequestOf({2, 5});
  const std::string bytes = BytesOf({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  message.add_raw_input_contents(bytes);
  v1::InferRequest request;
  HostBuffer data;
  ASSERT_TRUE(Translate(message, &request, &data).ok());
  EXPECT_EQ(data.bytes(), bytes);
  EXPECT_EQ(request.outputs_size(), 0);
  const absl::StatusOr<PointCloud> cloud = DecodeCloud(request.mutable_cloud(), std::move(data));
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 2u);
  std::vector<float> values;
  for (const char* name : {"x", "y", "z", "intensity", "age"}) {
    float both[2];
    cloud->ReadField(*cloud->FindField(name), 0, 2, both, 1);
    values.insert(values.end(), both, both + 2);
  }
  EXPECT_THAT(values, ElementsAre(1, 6, 2, 7, 3, 8, 4, 9, 5, 10));
}

TEST(OpenInferenceRequestTest, PackedValuesAreTheSame) {
  ModelInferRequest message = RequestOf({1, 4});
  const std::vector<float> values = {1, 2, 3, 0.5f};
  message.mutable_inputs(0)->mutable_contents()->mutable_fp32_contents()->Add(values.begin(), values.end());
  v1::InferRequest request;
  HostBuffer data;
  ASSERT_TRUE(Translate(message, &request, &data).ok());
  EXPECT_EQ(data.bytes(), BytesOf(values));
  EXPECT_EQ(request.cloud().point_step(), 16u);
  EXPECT_EQ(request.cloud().fields_size(), 4) << "the last column is left out";
}

TEST(OpenInferenceRequestTest, HalfValuesHaveTheirType) {
  ModelInferRequest message = RequestOf({1, 4}, "FP16");
  message.add_raw_input_contents(std::string("\x00\x3C\x00\x40\x00\x42\x00\x38", 8));  // 1, 2, 3, 0.5 in float16
  v1::InferRequest request;
  HostBuffer data;
  ASSERT_TRUE(Translate(message, &request, &data).ok());
  const absl::StatusOr<PointCloud> cloud = DecodeCloud(request.mutable_cloud(), std::move(data));
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  float intensity = 0;
  cloud->ReadField(*cloud->FindField("intensity"), 0, 1, &intensity, 1);
  EXPECT_EQ(intensity, 0.5f);
}

TEST(OpenInferenceRequestTest, NoPointsAreNoError) {
  v1::InferRequest request;
  HostBuffer data;
  EXPECT_TRUE(Translate(RequestOf({0, 4}), &request, &data).ok()) << "without contents";
  ModelInferRequest message = RequestOf({0, 4});
  message.add_raw_input_contents("");
  EXPECT_TRUE(Translate(message, &request, &data).ok());
  EXPECT_EQ(request.cloud().num_points(), 0u);
}

TEST(OpenInferenceRequestTest, RefusesInputsThatAreNotPoints) {
  ExpectRefused(ModelInferRequest(), error_reason::kMissingCloud, "the request has no input");
  ModelInferRequest message = RequestOf({1, 4});
  message.mutable_inputs(0)->set_name("cloud");
  ExpectRefused(message, error_reason::kBadLayout, "there is no input \"cloud\"; a model takes one, \"points\"");
  message = RequestOf({1, 4});
  *message.add_inputs() = message.inputs(0);
  ExpectRefused(message, error_reason::kBadLayout, "\"points\" comes 2 times");
}

TEST(OpenInferenceRequestTest, RefusesOtherTypes) {
  for (const char* datatype : {"", "fp32", "FP64", "BF16", "INT32", "BYTES"}) {
    ExpectRefused(RequestOf({1, 4}, datatype), error_reason::kBadLayout,
                  absl::StrCat("\"points\" has datatype \"", datatype, "\", must be FP32 or FP16"));
  }
}

TEST(OpenInferenceRequestTest, RefusesOtherShapesAndNamesTheColumns) {
  const std::vector<std::vector<int64_t>> shapes = {{}, {4}, {1, 2, 4}, {-1, 4}, {1, 3}, {1, 6}, {1, -4}, {1, 0}};
  for (const auto& shape : shapes) {
    ExpectRefused(RequestOf(shape), error_reason::kBadLayout,
                  "model \"mink\" takes [N, 5]: x, y, z, intensity, age; those behind the first 4 have defaults");
  }
  ExpectRefused(RequestOf({7, 3}), error_reason::kBadLayout, "\"points\" has shape [7, 3]");
}

TEST(OpenInferenceRequestTest, RefusesSizesThatDisagree) {
  ModelInferRequest message = RequestOf({10, 4});
  ExpectRefused(message, error_reason::kBadLayout, "takes 160 bytes, raw_input_contents has 0");
  message.add_raw_input_contents(std::string(159, '\0'));
  ExpectRefused(message, error_reason::kBadLayout,
                "an input of shape [10, 4] and datatype FP32 takes 160 bytes, raw_input_contents has 159");
  message.set_raw_input_contents(0, std::string(161, '\0'));
  ExpectRefused(message, error_reason::kBadLayout, "has 161");
  message.mutable_inputs(0)->set_datatype("FP16");
  ExpectRefused(message, error_reason::kBadLayout, "takes 80 bytes");
  message = RequestOf({std::numeric_limits<int64_t>::max() / 16 + 2, 4});
  message.add_raw_input_contents(std::string(16, '\0'));
  ExpectRefused(message, error_reason::kBadLayout, "takes more than 2^63 bytes");
}

TEST(OpenInferenceRequestTest, RefusesValuesInSeveralPlaces) {
  ModelInferRequest message = RequestOf({1, 4});
  message.add_raw_input_contents(std::string(16, '\0'));
  message.add_raw_input_contents(std::string(16, '\0'));
  ExpectRefused(message, error_reason::kBadLayout, "raw_input_contents has 2 entries for 1 input");
  message.mutable_raw_input_contents()->RemoveLast();
  message.mutable_inputs(0)->mutable_contents()->mutable_fp32_contents()->Resize(4, 1);
  ExpectRefused(message, error_reason::kBadLayout, "in raw_input_contents and in fp32_contents");
  message.clear_raw_input_contents();
  message.mutable_inputs(0)->set_datatype("FP16");
  ExpectRefused(message, error_reason::kBadLayout, "values of FP16 come in raw_input_contents");
}

TEST(OpenInferenceRequestTest, RefusesFloatsThatAreNotPacked) {
  constexpr int kInputs = ModelInferRequest::kInputsFieldNumber;
  constexpr int kContents = ModelInferRequest::InferInputTensor::kContentsFieldNumber;
  const std::string unpacked = Repeated(std::string("\x35\x00\x00\x80\x3F", 5), 4);  // field 6, fixed32: 1.0
  std::string input = RequestOf({1, 4}).inputs(0).SerializeAsString();
  ModelInferRequest parsed;
  HostBuffer data;
  TensorParts parts;
  const std::string bytes = DelimitedField(kInputs, input + DelimitedField(kContents, unpacked));
  ASSERT_TRUE(ParseModelInferRequest(OneSlice(bytes), HostBuffer::Create, &parsed, &data, &parts).ok());
  v1::InferRequest request;
  const absl::Status status = TranslateRequest(parsed, parts, data.size(), Labels(), &request);
  EXPECT_THAT(std::string(status.message()), HasSubstr("fp32_contents must be packed, and come in one piece"));
}

TEST(OpenInferenceRequestTest, ParametersMayNameSharedMemory) {
  inference::ModelInferRequest::InferInputTensor input;
  auto& parameters = *input.mutable_parameters();
  EXPECT_FALSE((*ParseSharedMemory(parameters, "")).has_value());
  parameters["shared_memory_region"].set_string_param("r");
  parameters["shared_memory_byte_size"].set_int64_param(160);
  EXPECT_EQ((*ParseSharedMemory(parameters, ""))->offset, 0);
  parameters["shared_memory_offset"].set_uint64_param(32);
  const auto use = *ParseSharedMemory(parameters, "");
  ASSERT_TRUE(use.has_value());
  EXPECT_EQ(use->region, "r");
  EXPECT_EQ(use->offset, 32);
  EXPECT_EQ(use->num_bytes, 160);
  const auto refused = [&](const std::string& text) {
    const absl::Status status = ParseSharedMemory(parameters, " of the input").status();
    EXPECT_EQ(ReasonOf(status), error_reason::kBadParameter);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  parameters["shared_memory_offset"].set_int64_param(-1);
  refused("parameter \"shared_memory_offset\" of the input must be a whole number from 0");
  parameters.erase("shared_memory_offset");
  parameters["shared_memory_byte_size"].set_string_param("16");
  refused("parameter \"shared_memory_byte_size\" of the input must be a whole number");
  parameters["shared_memory_byte_size"].set_int64_param(16);
  parameters.erase("shared_memory_region");
  refused("parameter \"shared_memory_region\" of the input names no region");
}

TEST(OpenInferenceRequestTest, SharedValuesHaveTheInputsSizeAndComeOnce) {
  ModelInferRequest message = RequestOf({2, 4});
  v1::InferRequest request;
  const TensorParts shared = {.is_shared = true};
  EXPECT_TRUE(TranslateRequest(message, shared, 32, Labels(), &request).ok());
  EXPECT_THAT(std::string(TranslateRequest(message, shared, 16, Labels(), &request).message()),
              HasSubstr("takes 32 bytes, shared memory has 16"));
  EXPECT_THAT(
      std::string(TranslateRequest(message, {.num_raw = 1, .is_shared = true}, 32, Labels(), &request).message()),
      HasSubstr("the values come twice: in shared memory and in the message"));
}

TEST(OpenInferenceRequestTest, RefusesParametersOfInputsAndOutputs) {
  ModelInferRequest message = RequestOf({1, 4});
  message.add_raw_input_contents(std::string(16, '\0'));
  auto& output = *message.add_outputs();
  output.set_name("labels");
  (*output.mutable_parameters())["classification"].set_int64_param(3);
  ExpectRefused(message, error_reason::kBadParameter,
                "parameter \"classification\" of the output \"labels\" is not served: labels are class ids already");
}

TEST(OpenInferenceRequestTest, NamesOfOutputsBecomeTensorsAndScores) {
  ModelInferRequest message = RequestOf({1, 4});
  message.add_raw_input_contents(std::string(16, '\0'));
  for (const char* name : {"coarse.coordinates", "coarse", "labels", "scores", "whole", "whole"}) {
    message.add_outputs()->set_name(name);
  }
  v1::InferRequest request;
  HostBuffer data;
  ASSERT_TRUE(Translate(message, &request, &data).ok());
  EXPECT_THAT(request.outputs(), ElementsAre("coarse", "whole"));
  EXPECT_TRUE(request.return_scores());
}

TEST(OpenInferenceRequestTest, RefusesUnknownOutputsWithTheModelsOwn) {
  ModelInferRequest message = RequestOf({1, 4});
  message.add_raw_input_contents(std::string(16, '\0'));
  message.add_outputs()->set_name("whole.coordinates");
  ExpectRefused(message, error_reason::kUnsupportedOutput,
                "model \"mink\" has no output \"whole.coordinates\"; it has labels, scores, coarse, "
                "coarse.coordinates, whole");
  message.mutable_outputs(0)->set_name("labels");
  ExpectRefused(message, error_reason::kUnsupportedOutput, "it has boxes, box_scores, box_classes", Detector());
}

TEST(OpenInferenceParametersTest, PriorityAndTimeout) {
  ModelInferRequest message;
  const auto priority = [&](uint64_t value) {
    (*message.mutable_parameters())["priority"].set_uint64_param(value);
    return ParseParameters(message)->priority;
  };
  EXPECT_EQ(ParseParameters(message)->priority, 0);
  EXPECT_EQ(ParseParameters(message)->timeout, absl::InfiniteDuration());
  EXPECT_EQ(priority(0), 0) << "the default";
  EXPECT_EQ(priority(1), 0) << "the most urgent";
  EXPECT_EQ(priority(2), 1);
  EXPECT_EQ(priority(uint64_t{1} << 40), std::numeric_limits<int>::max());
  (*message.mutable_parameters())["timeout"].set_int64_param(1500);
  EXPECT_EQ(ParseParameters(message)->timeout, absl::Microseconds(1500));
}

TEST(OpenInferenceParametersTest, RefusesOthers) {
  const auto expect_refused = [](const std::string& name, const inference::InferParameter& value,
                                 const std::string& text) {
    ModelInferRequest message;
    (*message.mutable_parameters())[name] = value;
    const absl::Status status = ParseParameters(message).status();
    EXPECT_EQ(ReasonOf(status), error_reason::kBadParameter) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  inference::InferParameter value;
  for (const char* name : {"priority", "timeout"}) expect_refused(name, value, "must be a whole number");
  value.set_int64_param(-1);
  for (const char* name : {"priority", "timeout"}) expect_refused(name, value, "must be a whole number");
  value.set_uint64_param(~uint64_t{0});
  for (const char* name : {"priority", "timeout"}) expect_refused(name, value, "must be a whole number");
  value.set_int64_param(0);
  expect_refused("timeout", value, "microseconds from 1");
  value.set_int64_param(7);
  expect_refused("sequence_id", value, "models keep no state");
  expect_refused("binary_data", value, "the parameters are priority and timeout");
}

TEST(OpenInferenceParametersTest, VersionsAreWholeNumbers) {
  EXPECT_EQ(*ParseModelVersion(""), 0);
  EXPECT_EQ(*ParseModelVersion("12"), 12);
  for (const char* text :
       {"0", "-1", "v1", "1.0", "99999999999999999999", "+1", " 1", "1 ", "1\n", "1_000", "01", "１", "0x1"}) {
    const absl::Status status = ParseModelVersion(text).status();
    EXPECT_EQ(ReasonOf(status), error_reason::kBadParameter) << text;
    EXPECT_EQ(status.message(),
              absl::StrCat("the model's version is ", Quoted(text), ", must be a whole number from 1, or empty"));
  }
}

TEST(OpenInferenceOutputsTest, ADetectorHasBoxesInThreeOutputs) {
  std::vector<std::string> outputs;
  for (const OpenInferenceOutput& output : OutputsOf(Detector())) {
    outputs.push_back(absl::StrCat(output.name, " ", output.datatype, " ", output.shape.size()));
  }
  EXPECT_THAT(outputs, ElementsAre("boxes FP32 2", "box_scores FP32 1", "box_classes INT32 1"));
}

// ---- responses

// Returns the bytes of the output of this name as values of T. Returns an empty vector if there is no such output.
template <typename T>
std::vector<T> ValuesOf(const ModelInferResponse& response, const std::string& name, const std::string& datatype,
                        const std::vector<int64_t>& shape) {
  for (int i = 0; i < response.outputs_size(); ++i) {
    const auto& output = response.outputs(i);
    if (output.name() != name) continue;
    EXPECT_EQ(output.datatype(), datatype);
    EXPECT_EQ(std::vector<int64_t>(output.shape().begin(), output.shape().end()), shape);
    std::vector<T> values(response.raw_output_contents(i).size() / sizeof(T));
    std::memcpy(values.data(), response.raw_output_contents(i).data(), values.size() * sizeof(T));
    return values;
  }
  return {};
}

InferResult ResultOf(std::vector<NamedOutput> outputs) {
  InferResult result;
  result.model = "mink";
  result.version = 3;
  result.device = "cpu";
  result.counts = {.used = 5, .invalid = 1, .out_of_range = 2, .dropped = 3, .not_finite = 4, .voxels = 6};
  result.outputs = std::move(outputs);
  return result;
}

TEST(OpenInferenceResponseTest, LabelsAreInt32OfBothWidths) {
  InferResult result = ResultOf({LabelsOf({0, 7, 255})});
  ModelInferResponse response;
  EncodeOpenInference(result, {}, &response);
  EXPECT_EQ(response.model_name(), "mink");
  EXPECT_EQ(response.model_version(), "3");
  EXPECT_THAT(ValuesOf<int32_t>(response, "labels", "INT32", {3}), ElementsAre(0, 7, 255));
  const std::vector<uint16_t> wide = {1, 65535};
  result = ResultOf({{.name = "labels",
                      .dtype = DType::kUint16,
                      .columns = 1,
                      .bytes = std::string(reinterpret_cast<const char*>(wide.data()), 4)}});
  response.Clear();
  EncodeOpenInference(result, {}, &response);
  EXPECT_THAT(ValuesOf<int32_t>(response, "labels", "INT32", {2}), ElementsAre(1, 65535));
}

TEST(OpenInferenceResponseTest, WarningsAreAParameter) {
  InferResult result = ResultOf({LabelsOf({})});
  result.warnings = {{.feature = "intensity", .range = {.low = 0, .high = 1}, .smallest = 0, .largest = 255},
                     {.feature = "age", .range = {.low = 0, .high = 0.5f}, .smallest = -1, .largest = 0}};
  ModelInferResponse response;
  EncodeOpenInference(result, {}, &response);
  EXPECT_EQ(
      response.parameters().at("warnings").string_param(),
      "intensity is 0 to 255, but the model was trained on 0 to 1; age is -1 to 0, but the model was trained on 0 "
      "to 0.5");
}

TEST(OpenInferenceResponseTest, CountsOfPointsAreParameters) {
  InferResult result = ResultOf({LabelsOf({})});
  result.num_not_finite_boxes = 7;
  ModelInferResponse response;
  EncodeOpenInference(result, {}, &response);
  const auto& parameters = response.parameters();
  EXPECT_EQ(parameters.at("device").string_param(), "cpu");
  EXPECT_EQ(parameters.at("points_used").int64_param(), 5);
  EXPECT_EQ(parameters.at("points_invalid").int64_param(), 1);
  EXPECT_EQ(parameters.at("points_out_of_range").int64_param(), 2);
  EXPECT_EQ(parameters.at("points_dropped").int64_param(), 3);
  EXPECT_EQ(parameters.at("points_not_finite").int64_param(), 4);
  EXPECT_EQ(parameters.at("boxes_not_finite").int64_param(), 7);
  EXPECT_EQ(parameters.at("voxels").int64_param(), 6);
  EXPECT_EQ(parameters.count("warnings"), 0u);
  EXPECT_EQ(response.outputs_size(), 1) << "an output without rows is there";
}

TEST(OpenInferenceResponseTest, OnlyNamedOutputsAreAnswered) {
  InferResult result = ResultOf({LabelsOf({1, 2}), ScoresOf({0.5f, 1, 2, 3}, 2)});
  ModelInferResponse response;
  EncodeOpenInference(result, {"scores"}, &response);
  EXPECT_EQ(response.outputs_size(), 1);
  EXPECT_THAT(ValuesOf<float>(response, "scores", "FP32", {2, 2}), ElementsAre(0.5f, 1, 2, 3));
}

TEST(OpenInferenceResponseTest, BoxesAreThreeOutputs) {
  InferResult result = ResultOf({BoxesOf({{.class_id = 2,
                                           .score = 0.75f,
                                           .x = 1,
                                           .y = 2,
                                           .z = 3,
                                           .length = 4,
                                           .width = 5,
                                           .height = 6,
                                           .yaw = 0.5f,
                                           .velocity_x = 7,
                                           .velocity_y = 8}})});
  ModelInferResponse response;
  EncodeOpenInference(result, {}, &response);
  EXPECT_THAT(ValuesOf<float>(response, "boxes", "FP32", {1, 9}), ElementsAre(1, 2, 3, 4, 5, 6, 0.5f, 7, 8));
  EXPECT_THAT(ValuesOf<float>(response, "box_scores", "FP32", {1}), ElementsAre(0.75f));
  EXPECT_THAT(ValuesOf<int32_t>(response, "box_classes", "INT32", {1}), ElementsAre(2));
}

TEST(OpenInferenceResponseTest, SitesComeWithTheirCoordinates) {
  InferResult result = ResultOf({});
  OutputTensor tensor{.info = {.name = "coarse", .rows = TensorRows::kSites, .channels = 2, .unit = {2, 2, 2}},
                      .bytes = BytesOf({1, 2, 3, 4})};
  const std::vector<int32_t> coordinates = {0, 1, 2, -3, 4, 5};
  tensor.coordinates.assign(reinterpret_cast<const char*>(coordinates.data()), 24);
  result.tensors = {tensor};
  ModelInferResponse response;
  EncodeOpenInference(result, {}, &response);
  EXPECT_THAT(ValuesOf<float>(response, "coarse", "FP32", {2, 2}), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(ValuesOf<int32_t>(response, "coarse.coordinates", "INT32", {2, 3}), ElementsAre(0, 1, 2, -3, 4, 5));
  result.tensors = {tensor};
  response.Clear();
  EncodeOpenInference(result, {"coarse"}, &response);
  EXPECT_EQ(response.outputs_size(), 1);
}

}  // namespace
}  // namespace voxserve::open_inference_test
