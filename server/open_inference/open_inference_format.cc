#include "server/open_inference/open_inference_format.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "server/codec/message_parser.h"

namespace voxserve {

absl::Status OpenInferenceFormat::Parse(const grpc::ByteBuffer& bytes, CloudAllocator allocate,
                                        v1::InferRequest* request, HostBuffer* data) {
  RETURN_IF_ERROR(ParseModelInferRequest(bytes, allocate, &message_, data, &parts_));
  num_bytes_ = data->size();
  parameters_ = ParseParameters(message_);
  request->set_model(message_.model_name());
  // Complete() reports the errors of the version and of the parameters.
  request->set_version(ParseModelVersion(message_.model_version()).value_or(0));
  if (parameters_.ok()) request->set_priority(static_cast<uint32_t>(parameters_->priority));
  request->set_request_id(message_.id());
  return absl::OkStatus();
}

absl::Status OpenInferenceFormat::Complete(const Engine& engine, v1::InferRequest* request) {
  RETURN_IF_ERROR(ParseModelVersion(message_.model_version()).status());
  RETURN_IF_ERROR(parameters_.status());
  if (message_.inputs_size() == 1) {
    ASSIGN_OR_RETURN(shared_input_, ParseSharedMemory(message_.inputs(0).parameters(), " of the input"));
  }
  if (shared_input_) {
    parts_.is_shared = true;
    num_bytes_ = shared_input_->num_bytes;
  }
  ASSIGN_OR_RETURN(const ModelVersionInfo model, engine.GetModel(request->model(), request->version()));
  if (model.state != ModelState::kReady) return WhyNotReady(model);
  return TranslateRequest(message_, parts_, num_bytes_, model, request);
}

absl::Status OpenInferenceFormat::Fetch(const CallEnvironment& environment, const std::string& client,
                                        CloudAllocator allocate, HostBuffer* data) {
  const auto find = [&](const SharedMemoryUse& use) {
    return environment.shared_memory->Find(client, use.region, use.offset, use.num_bytes);
  };
  for (const auto& output : message_.outputs()) {
    ASSIGN_OR_RETURN(const std::optional<SharedMemoryUse> use, ParseSharedMemory(output.parameters(), ""));
    if (!use) continue;
    ASSIGN_OR_RETURN(SharedMemoryPart part, find(*use));
    shared_outputs_.insert_or_assign(output.name(), std::move(part));
  }
  if (!shared_input_) return absl::OkStatus();
  if (shared_input_->num_bytes > environment.max_message_bytes) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(
                          "the input takes ", shared_input_->num_bytes, " bytes of shared memory, at most ",
                          environment.max_message_bytes, " are allowed, as in a message (--max_message_bytes)")),
                      error_reason::kBadLayout);
  }
  ASSIGN_OR_RETURN(const SharedMemoryPart part, find(*shared_input_));
  ASSIGN_OR_RETURN(*data, allocate(part.num_bytes()));
  RETURN_IF_ERROR(part.Read([&](int64_t begin, std::string_view bytes) { data->Write(begin, bytes); }));
  data->FinishWrites();
  return absl::OkStatus();
}

absl::Status OpenInferenceFormat::MoveOutputs(inference::ModelInferResponse* response) const {
  for (int i = 0; i < response->outputs_size(); ++i) {
    auto& output = *response->mutable_outputs(i);
    const auto found = shared_outputs_.find(output.name());
    if (found == shared_outputs_.end()) continue;
    std::string& bytes = *response->mutable_raw_output_contents(i);
    RETURN_IF_ERROR(found->second.Write(bytes));
    auto& parameters = *output.mutable_parameters();
    parameters["shared_memory_region"].set_string_param(found->second.region());
    parameters["shared_memory_byte_size"].set_int64_param(static_cast<int64_t>(bytes.size()));
    bytes.clear();  // the empty entry stays, since clients find an output's bytes by its index
  }
  return absl::OkStatus();
}

absl::StatusOr<EncodedAnswer> OpenInferenceFormat::Encode(InferResult* result, RequestCodec* codec) {
  const absl::Time start = SteadyNow();
  std::vector<std::string> outputs;
  for (const auto& output : message_.outputs()) outputs.push_back(output.name());
  auto streamed = std::make_unique<inference::ModelStreamInferResponse>();
  inference::ModelInferResponse& response = *streamed->mutable_infer_response();
  response.set_id(message_.id());
  EncodeOpenInference(*result, outputs, &response);
  RETURN_IF_ERROR(MoveOutputs(&response));
  EncodedAnswer answer;
  ASSIGN_OR_RETURN(answer.held, codec->Hold(response, start));
  if (parameters_->wants_final_mark) (*response.mutable_parameters())["triton_final_response"].set_bool_param(true);
  if (is_streamed_) {
    answer.message = std::move(streamed);
  } else {
    answer.message.reset(streamed->release_infer_response());
  }
  return answer;
}

}  // namespace voxserve
