#include "server/open_inference/open_inference_format.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "server/codec/message_parser.h"

namespace voxserve {

absl::Status OpenInferenceFormat::Parse(const grpc::ByteBuffer& bytes, CloudAllocator allocate,
                                        v1::InferRequest* request, HostBuffer* data) {
  RETURN_IF_ERROR(ParseModelInferRequest(bytes, allocate, &message_, data, &parts_));
  num_bytes_ = data->size();
  parameters_ = ParseParameters(message_);
  request->set_model(message_.model_name());
  // Complete() reports what is wrong with these.
  request->set_version(ParseModelVersion(message_.model_version()).value_or(0));
  if (parameters_.ok()) request->set_priority(static_cast<uint32_t>(parameters_->priority));
  request->set_request_id(message_.id());
  return absl::OkStatus();
}

absl::Status OpenInferenceFormat::Complete(const Engine& engine, v1::InferRequest* request) {
  RETURN_IF_ERROR(ParseModelVersion(message_.model_version()).status());
  RETURN_IF_ERROR(parameters_.status());
  ASSIGN_OR_RETURN(const ModelVersionInfo model, engine.GetModel(request->model(), request->version()));
  if (model.state != ModelState::kReady) return WhyNotReady(model);
  return TranslateRequest(message_, parts_, num_bytes_, model, request);
}

absl::StatusOr<InferAnswer> OpenInferenceFormat::Encode(InferResult result, RequestTelemetry* telemetry) {
  std::vector<std::string> outputs;
  for (const auto& output : message_.outputs()) outputs.push_back(output.name());
  inference::ModelStreamInferResponse streamed;
  inference::ModelInferResponse& response = *streamed.mutable_infer_response();
  response.set_id(message_.id());
  InferAnswer answer;
  ASSIGN_OR_RETURN(answer.held, telemetry->Answer(std::move(result), outputs, &response));
  if (parameters_->wants_final_mark) (*response.mutable_parameters())["triton_final_response"].set_bool_param(true);
  const google::protobuf::Message& message =
      is_streamed_ ? static_cast<google::protobuf::Message&>(streamed) : response;
  ASSIGN_OR_RETURN(answer.message, Serialize(message));
  return answer;
}

}  // namespace voxserve
