#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "open_inference.pb.h"
#include "server/calls/lookup_call.h"
#include "server/codec/open_inference.h"
#include "server/open_inference/open_inference_service.h"

namespace voxserve {
namespace {

constexpr char kPlatform[] = "voxserve";

absl::Status ServerLive(const CallEnvironment& /*environment*/, const Caller& /*caller*/,
                        const inference::ServerLiveRequest& /*request*/, inference::ServerLiveResponse* response) {
  response->set_live(true);
  return absl::OkStatus();
}

absl::Status ServerReady(const CallEnvironment& environment, const Caller& /*caller*/,
                         const inference::ServerReadyRequest& /*request*/, inference::ServerReadyResponse* response) {
  response->set_ready(environment.is_ready());
  return absl::OkStatus();
}

absl::Status ServerMetadata(const CallEnvironment& environment, const Caller& /*caller*/,
                            const inference::ServerMetadataRequest& /*request*/,
                            inference::ServerMetadataResponse* response) {
  response->set_name("voxserve");
  response->set_version(environment.version);
  return absl::OkStatus();
}

// Returns the version of the model. Returns the error of Caller::CheckModel if the caller may not see the model.
absl::StatusOr<ModelVersionInfo> FindModel(const CallEnvironment& environment, const Caller& caller,
                                           const std::string& name, const std::string& version) {
  if (!caller.SeesModel(name)) return caller.CheckModel(name);
  ASSIGN_OR_RETURN(const int64_t number, ParseModelVersion(version));
  return environment.engine->GetModel(name, number);
}

absl::StatusOr<ModelVersionInfo> FindReadyModel(const CallEnvironment& environment, const Caller& caller,
                                                const std::string& name, const std::string& version) {
  ASSIGN_OR_RETURN(ModelVersionInfo info, FindModel(environment, caller, name, version));
  if (info.state != ModelState::kReady) return WhyNotReady(info);
  return info;
}

absl::Status ModelReady(const CallEnvironment& environment, const Caller& caller,
                        const inference::ModelReadyRequest& request, inference::ModelReadyResponse* response) {
  const absl::StatusOr<ModelVersionInfo> info = FindModel(environment, caller, request.name(), request.version());
  if (!info.ok() && !absl::IsNotFound(info.status())) return info.status();
  response->set_ready(info.ok() && info->state == ModelState::kReady);
  return absl::OkStatus();
}

absl::Status ModelMetadata(const CallEnvironment& environment, const Caller& caller,
                           const inference::ModelMetadataRequest& request, inference::ModelMetadataResponse* response) {
  ASSIGN_OR_RETURN(const ModelVersionInfo info, FindReadyModel(environment, caller, request.name(), request.version()));
  response->set_name(info.name);
  response->set_platform(kPlatform);
  for (const ModelVersionInfo& other : environment.engine->ListModels()) {
    const bool is_ready = other.name == info.name && other.state == ModelState::kReady;
    if (is_ready) response->add_versions(absl::StrCat(other.version));
  }
  auto& input = *response->add_inputs();
  input.set_name(std::string(kPointsInput));
  input.set_datatype("FP32");
  input.add_shape(-1);
  input.add_shape(static_cast<int64_t>(ColumnNames(info).size()));
  for (const OpenInferenceOutput& output : OutputsOf(info)) {
    auto& out = *response->add_outputs();
    out.set_name(output.name);
    out.set_datatype(output.datatype);
    out.mutable_shape()->Add(output.shape.begin(), output.shape.end());
  }
  return absl::OkStatus();
}

inference::DataType DataTypeOf(const std::string& datatype) {
  return datatype == "INT32" ? inference::TYPE_INT32 : inference::TYPE_FP32;
}

absl::Status DescribeConfig(const CallEnvironment& environment, const Caller& caller,
                            const inference::ModelConfigRequest& request, inference::ModelConfigResponse* response) {
  ASSIGN_OR_RETURN(const ModelVersionInfo info, FindReadyModel(environment, caller, request.name(), request.version()));
  inference::ModelConfig& config = *response->mutable_config();
  config.set_name(info.name);
  config.set_platform(kPlatform);
  config.set_backend(kPlatform);
  inference::ModelInput& input = *config.add_input();
  input.set_name(std::string(kPointsInput));
  input.set_data_type(inference::TYPE_FP32);
  input.add_dims(-1);
  input.add_dims(static_cast<int64_t>(ColumnNames(info).size()));
  for (const OpenInferenceOutput& output : OutputsOf(info)) {
    inference::ModelOutput& out = *config.add_output();
    out.set_name(output.name);
    out.set_data_type(DataTypeOf(output.datatype));
    out.mutable_dims()->Add(output.shape.begin(), output.shape.end());
  }
  return absl::OkStatus();
}

uint64_t Nanoseconds(double seconds) { return static_cast<uint64_t>(seconds * 1e9); }

void AddStages(const ModelTotals& totals, std::initializer_list<Stage> stages, inference::StatisticDuration* out) {
  for (const Stage stage : stages) {
    const auto found = totals.stages.find(stage);
    if (found == totals.stages.end()) continue;
    // A request has each stage at most once, so the largest count is the number of requests.
    out->set_count(std::max(out->count(), static_cast<uint64_t>(found->second.count)));
    out->set_ns(out->ns() + Nanoseconds(found->second.seconds));
  }
}

void EncodeStatistics(const ModelTotals& totals, inference::ModelStatistics* out) {
  const auto successes = static_cast<uint64_t>(totals.successes.count);
  if (totals.last_success != absl::InfinitePast()) {
    out->set_last_inference(static_cast<uint64_t>(absl::ToUnixMillis(totals.last_success)));
  }
  out->set_inference_count(successes);
  out->set_execution_count(static_cast<uint64_t>(totals.batches));
  inference::InferStatistics& statistics = *out->mutable_inference_stats();
  statistics.mutable_success()->set_count(successes);
  statistics.mutable_success()->set_ns(Nanoseconds(totals.successes.seconds));
  statistics.mutable_fail()->set_count(static_cast<uint64_t>(totals.failures));
  statistics.mutable_fail()->set_ns(Nanoseconds(totals.refusals.seconds));
  AddStages(totals, {Stage::kQueue}, statistics.mutable_queue());
  AddStages(totals, {Stage::kDecode, Stage::kCopyIn, Stage::kSample}, statistics.mutable_compute_input());
  AddStages(totals, {Stage::kVoxelize, Stage::kGeometry, Stage::kFeatures, Stage::kHead},
            statistics.mutable_compute_infer());
  AddStages(totals, {Stage::kCopyOut, Stage::kEncode}, statistics.mutable_compute_output());
}

// Returns one entry for each model with a ready version.
absl::Status StatisticsOfModels(const CallEnvironment& environment, const Caller& caller,
                                const inference::ModelStatisticsRequest& request,
                                inference::ModelStatisticsResponse* response) {
  if (!request.name().empty()) {
    RETURN_IF_ERROR(FindModel(environment, caller, request.name(), request.version()).status());
  }
  std::map<std::string, int64_t> newest;
  int num_versions = 0;  // of the model that is asked for
  for (const ModelVersionInfo& info : environment.engine->ListModels()) {
    const bool is_asked_for = request.name().empty() ? caller.SeesModel(info.name) : info.name == request.name();
    if (!is_asked_for || info.state != ModelState::kReady) continue;
    newest[info.name] = info.version;  // ListModels gives a model's versions in ascending order
    ++num_versions;
  }
  if (!request.version().empty() && (request.name().empty() || num_versions > 1)) {
    return WithReason(absl::InvalidArgumentError("statistics are kept by model, for all its versions together; leave "
                                                 "the version out"),
                      error_reason::kBadParameter);
  }
  for (const auto& [name, version] : newest) {
    inference::ModelStatistics& out = *response->add_model_stats();
    out.set_name(name);
    out.set_version(absl::StrCat(version));
    EncodeStatistics(environment.metrics->TotalsOf(name), &out);
  }
  return absl::OkStatus();
}

const char* StateName(ModelState state) {
  switch (state) {
    case ModelState::kLoading:
      return "LOADING";
    case ModelState::kReady:
      return "READY";
    case ModelState::kFailed:
      break;
  }
  return "UNAVAILABLE";
}

absl::Status RepositoryIndex(const CallEnvironment& environment, const Caller& caller,
                             const inference::RepositoryIndexRequest& request,
                             inference::RepositoryIndexResponse* response) {
  RETURN_IF_ERROR(CheckRepository(request.repository_name()));
  for (const ModelVersionInfo& info : environment.engine->ListModels()) {
    if (!caller.SeesModel(info.name) || (request.ready() && info.state != ModelState::kReady)) continue;
    auto& model = *response->add_models();
    model.set_name(info.name);
    model.set_version(absl::StrCat(info.version));
    model.set_state(StateName(info.state));
    model.set_reason(absl::StrJoin(info.problems, "; "));
  }
  return absl::OkStatus();
}

absl::Status CheckSharedMemoryIsOn(const CallEnvironment& environment) {
  if (environment.shared_memory->is_on()) return absl::OkStatus();
  return absl::UnimplementedError("shared memory is off on this server; --shared_memory_prefix allows it");
}

absl::Status SharedMemoryStatus(const CallEnvironment& environment, const Caller& caller,
                                const inference::SystemSharedMemoryStatusRequest& request,
                                inference::SystemSharedMemoryStatusResponse* response) {
  RETURN_IF_ERROR(CheckSharedMemoryIsOn(environment));
  ASSIGN_OR_RETURN(const std::vector<SharedMemoryRegion> regions,
                   environment.shared_memory->List(caller.client, request.name()));
  for (const SharedMemoryRegion& region : regions) {
    auto& out = (*response->mutable_regions())[region.name];
    out.set_name(region.name);
    out.set_key(region.key);
    out.set_offset(static_cast<uint64_t>(region.offset));
    out.set_byte_size(static_cast<uint64_t>(region.num_bytes));
  }
  return absl::OkStatus();
}

// An offset or size of 2^63 bytes or more becomes negative in the conversion to int64_t, and Register refuses it.
absl::Status RegisterSharedMemory(const CallEnvironment& environment, const Caller& caller,
                                  const inference::SystemSharedMemoryRegisterRequest& request,
                                  inference::SystemSharedMemoryRegisterResponse* /*response*/) {
  RETURN_IF_ERROR(CheckSharedMemoryIsOn(environment));
  return environment.shared_memory->Register(caller.client, {.name = request.name(),
                                                             .key = request.key(),
                                                             .offset = static_cast<int64_t>(request.offset()),
                                                             .num_bytes = static_cast<int64_t>(request.byte_size())});
}

absl::Status UnregisterSharedMemory(const CallEnvironment& environment, const Caller& caller,
                                    const inference::SystemSharedMemoryUnregisterRequest& request,
                                    inference::SystemSharedMemoryUnregisterResponse* /*response*/) {
  RETURN_IF_ERROR(CheckSharedMemoryIsOn(environment));
  environment.shared_memory->Unregister(caller.client, request.name());
  return absl::OkStatus();
}

}  // namespace

void AddSharedMemoryLookups(const std::string& service, const CallEnvironment* environment, RpcRouter* router) {
  AddLookup(service + "SystemSharedMemoryStatus", Access::kInfer, CallKind::kInfo, environment, router,
            SharedMemoryStatus);
  AddLookup(service + "SystemSharedMemoryRegister", Access::kInfer, CallKind::kRequest, environment, router,
            RegisterSharedMemory);
  AddLookup(service + "SystemSharedMemoryUnregister", Access::kInfer, CallKind::kRequest, environment, router,
            UnregisterSharedMemory);
}

void AddOpenInferenceLookups(const std::string& service, const CallEnvironment* environment, RpcRouter* router) {
  AddLookup(service + "ServerLive", Access::kOpen, CallKind::kInfo, environment, router, ServerLive);
  AddLookup(service + "ServerReady", Access::kOpen, CallKind::kInfo, environment, router, ServerReady);
  AddLookup(service + "ServerMetadata", Access::kAny, CallKind::kInfo, environment, router, ServerMetadata);
  AddLookup(service + "ModelReady", Access::kModels, CallKind::kInfo, environment, router, ModelReady);
  AddLookup(service + "ModelMetadata", Access::kModels, CallKind::kRequest, environment, router, ModelMetadata);
  AddLookup(service + "ModelConfig", Access::kModels, CallKind::kRequest, environment, router, DescribeConfig);
  AddLookup(service + "ModelStatistics", Access::kModels, CallKind::kRequest, environment, router, StatisticsOfModels);
  AddLookup(service + "RepositoryIndex", Access::kModels, CallKind::kRequest, environment, router, RepositoryIndex);
}

}  // namespace voxserve
