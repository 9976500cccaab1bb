#include "client/python/native/local_engine.h"

#include <google/protobuf/message.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/base/error_reason.h"
#include "engine/base/quoted.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "engine/runtime/cuda_devices.h"
#include "engine/runtime/host_buffer.h"
#include "engine/tensor/infer_result.h"
#include "engine/tensor/infer_task.h"
#include "engine/tensor/point_cloud.h"
#include "engine/tensor/stage.h"
#include "server/codec/codec.h"

namespace voxserve {
namespace {

// The pause between two questions whether the request is interrupted.
constexpr absl::Duration kInterruptPeriod = absl::Milliseconds(100);
// The deadline of a request without a timeout. (Without any deadline the engine would take the model's default.)
constexpr absl::Duration kNoTimeout = absl::Hours(24 * 365);
constexpr size_t kMaxProblems = 5;
constexpr std::string_view kCpu = "cpu";  // the engine's devices, if it uses no GPU

// The result of a task. The engine holds one reference until it has called `done`, also if Infer gave the request up.
struct Pending {
  absl::StatusOr<InferResult> result = absl::UnknownError("not done");
  absl::Notification done;
};

absl::Status Parse(std::string_view bytes, const char* what, google::protobuf::Message* message) {
  if (bytes.size() <= std::numeric_limits<int>::max() &&
      message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::OkStatus();
  }
  return WithReason(absl::InvalidArgumentError(absl::StrCat("these bytes are no ", what)), error_reason::kMalformed);
}

// Returns OK if the model repository has a model that is ready.
absl::Status CheckModels(const Engine& engine, const std::string& repository) {
  const std::vector<ModelVersionInfo> models = engine.ListModels();
  if (std::any_of(models.begin(), models.end(), [](const auto& info) { return info.state == ModelState::kReady; })) {
    return absl::OkStatus();
  }
  if (models.empty()) {
    return WithReason(
        absl::NotFoundError(absl::StrCat("there is no model in ", Quoted(repository),
                                         "; a model is a folder with versions, such as minkunet/1/model.textproto")),
        error_reason::kModelNotFound);
  }
  std::string text = "no model could be loaded";
  for (const ModelVersionInfo& info : models) {
    absl::StrAppend(&text, "; model ", Quoted(info.name), " version ", info.version, ": ");
    const size_t num_told = std::min(kMaxProblems, info.problems.size());
    for (size_t i = 0; i < num_told; ++i) absl::StrAppend(&text, i == 0 ? "" : "; ", info.problems[i]);
    if (num_told < info.problems.size()) absl::StrAppend(&text, "; and ", info.problems.size() - num_told, " more");
  }
  return WithReason(absl::FailedPreconditionError(text), error_reason::kBadModel);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalEngine>> LocalEngine::Create(Engine::Options options) {
  std::optional<CurrentDeviceGuard> guard;
  if (options.devices != kCpu) guard.emplace();
  const std::string repository = options.model_repository;
  ASSIGN_OR_RETURN(std::shared_ptr<Engine> engine, Engine::Create(std::move(options)));
  engine->WaitUntilLoaded();
  RETURN_IF_ERROR(CheckModels(*engine, repository));
  return std::unique_ptr<LocalEngine>(new LocalEngine(std::move(engine)));
}

LocalEngine::LocalEngine(std::shared_ptr<Engine> engine)
    : process_(getpid()), uses_gpus_(engine->devices() != kCpu), engine_(std::move(engine)) {}

absl::StatusOr<std::shared_ptr<Engine>> LocalEngine::Opened() const {
  // A fork copies the memory but not the threads: nobody would answer. The lock may be held by one of those threads.
  if (getpid() != process_) {
    return absl::FailedPreconditionError(
        "this engine belongs to the process that made it; a process that was forked from it has to make its own");
  }
  absl::MutexLock lock(&mutex_);
  if (engine_ == nullptr) return absl::FailedPreconditionError("this engine was closed");
  return engine_;
}

absl::StatusOr<v1::InferResponse> LocalEngine::Infer(const Request& request, absl::FunctionRef<bool()> is_interrupted) {
  std::optional<CurrentDeviceGuard> guard;  // before `engine`, which may be the last to hold the engine
  if (uses_gpus_) guard.emplace();
  ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, Opened());
  const absl::Time start = SteadyNow();
  v1::InferRequest message;
  RETURN_IF_ERROR(Parse(request.head, "InferRequest", &message));
  RETURN_IF_ERROR(Parse(request.cloud, "PointCloud", message.mutable_cloud()));
  ASSIGN_OR_RETURN(HostBuffer data,
                   engine->AllocateCloud(static_cast<int64_t>(request.points.size()), BufferLife::kRequest));
  data.Write(0, request.points);
  data.FinishWrites();
  RETURN_IF_ERROR(StampOf(message.cloud()).status());
  ASSIGN_OR_RETURN(PointCloud cloud, DecodeCloud(message.mutable_cloud(), std::move(data)));
  ASSIGN_OR_RETURN(InferTask task, DecodeRequest(message, std::move(cloud)));
  const absl::Time decoded = SteadyNow();

  const auto pending = std::make_shared<Pending>();
  task.deadline = start + std::min(request.timeout, kNoTimeout);
  task.done = [pending](absl::StatusOr<InferResult> result) {
    pending->result = std::move(result);
    pending->done.Notify();
  };
  const uint64_t ticket = engine->Submit(std::move(task));
  while (!pending->done.WaitForNotificationWithTimeout(kInterruptPeriod)) {
    if (!is_interrupted()) continue;
    engine->Cancel(ticket);
    return WithReason(absl::CancelledError("the request was interrupted"), error_reason::kCancelled);
  }
  RETURN_IF_ERROR(pending->result.status());

  const absl::Time answered = SteadyNow();
  v1::InferResponse response;
  AppendStage({Stage::kDecode, decoded - start}, &response);
  EncodeResult(*pending->result, &response);
  AppendStage({Stage::kEncode, SteadyNow() - answered}, &response);
  return response;
}

absl::StatusOr<v1::ListModelsResponse> LocalEngine::ListModels() const {
  std::optional<CurrentDeviceGuard> guard;  // before `engine`, as in Infer
  if (uses_gpus_) guard.emplace();
  ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, Opened());
  v1::ListModelsResponse response;
  for (const ModelVersionInfo& info : engine->ListModels()) EncodeModel(info, response.add_models());
  return response;
}

absl::StatusOr<v1::GetModelResponse> LocalEngine::GetModel(const std::string& name, int64_t version) const {
  std::optional<CurrentDeviceGuard> guard;  // before `engine`, as in Infer
  if (uses_gpus_) guard.emplace();
  ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, Opened());
  ASSIGN_OR_RETURN(const ModelVersionInfo info, engine->GetModel(name, version));
  v1::GetModelResponse response;
  EncodeModel(info, response.mutable_model());
  return response;
}

absl::StatusOr<std::string> LocalEngine::devices() const {
  ASSIGN_OR_RETURN(const std::shared_ptr<Engine> engine, Opened());
  return engine->devices();
}

void LocalEngine::Close() {
  if (getpid() != process_) {
    // The engine would wait for threads that the child does not have, so the child keeps the copy until it ends.
    new std::shared_ptr<Engine>(std::move(engine_));
    return;
  }
  std::optional<CurrentDeviceGuard> guard;
  if (uses_gpus_) guard.emplace();
  std::shared_ptr<Engine> engine;
  {
    absl::MutexLock lock(&mutex_);
    engine = std::move(engine_);
    engine_ = nullptr;
  }
  if (engine != nullptr) engine->Drain();
}

}  // namespace voxserve
