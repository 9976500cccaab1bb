#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/base/steady_time.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "server/calls/call.h"
#include "server/calls/request_telemetry.h"
#include "server/codec/message_parser.h"
#include "server/services/services.h"

namespace voxserve {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1alpha::FileDescriptorResponse;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

constexpr const char* kServices[] = {"grpc.health.v1.Health",          "grpc.reflection.v1alpha.ServerReflection",
                                     "inference.GRPCInferenceService", "voxserve.v1.AdminService",
                                     "voxserve.v1.InferenceService",   "xds.service.orca.v3.OpenRcaService"};

// Adds the file and its imports, each once.
void AddFile(const FileDescriptor* file, std::set<const FileDescriptor*>* added, FileDescriptorResponse* response) {
  if (!added->insert(file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  response->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file->dependency_count(); ++i) AddFile(file->dependency(i), added, response);
}

void AnswerWithFile(const FileDescriptor* file, const std::string& name, ServerReflectionResponse* response) {
  if (file == nullptr) {
    response->mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
    response->mutable_error_response()->set_error_message(absl::StrCat("nothing is named \"", Clipped(name), "\""));
    return;
  }
  std::set<const FileDescriptor*> added;
  AddFile(file, &added, response->mutable_file_descriptor_response());
}

ServerReflectionResponse Answer(const ServerReflectionRequest& request) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kListServices:
      for (const char* name : kServices) response.mutable_list_services_response()->add_service()->set_name(name);
      return response;
    case ServerReflectionRequest::kFileByFilename:
      AnswerWithFile(pool.FindFileByName(request.file_by_filename()), request.file_by_filename(), &response);
      return response;
    case ServerReflectionRequest::kFileContainingSymbol:
      AnswerWithFile(pool.FindFileContainingSymbol(request.file_containing_symbol()), request.file_containing_symbol(),
                     &response);
      return response;
    case ServerReflectionRequest::kFileContainingExtension:
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
    case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
      break;
  }
  response.mutable_error_response()->set_error_code(grpc::StatusCode::UNIMPLEMENTED);
  response.mutable_error_response()->set_error_message("this server answers for files, symbols and services");
  return response;
}

// One call of ServerReflectionInfo. It answers each request before it reads the next one.
class ReflectionCall final : public Call {
 public:
  ReflectionCall(const CallEnvironment* environment, grpc::CallbackServerContext* context)
      : Call(environment, context, CallKind::kInfo) {}

  void Start() override { Read(); }
  void Drain() override {}
  void GiveWay(const absl::Status& why) override {
    if (!StopReading()) return;  // an answer is being sent, which has its own time
    environment().metrics->OnCallEndedEarly(ReasonOf(why));
    End(why);
  }

  void OnReadDone(bool ok) override {
    if (ok) CountMessage(message_);
    if (!StopReading()) return;
    if (!ok) return End(absl::OkStatus());
    absl::Status status;
    if (!Guard([&] { status = TakeAnswer(); })) status = OutOfMemoryError();
    if (!status.ok()) return End(status);
    StartAnswerTimer(static_cast<int64_t>(message_.Length()));
    StartWrite(&message_);
  }

  void OnCancel() override { CountEarlyEnd(); }

  void OnWriteDone(bool ok) override {
    StopAnswerTimer();
    held_.Release();
    if (!ok) return End(absl::OkStatus());
    Read();
  }

 private:
  void OnClosed() override {
    StopReading();
    if (!has_message()) CountEarlyEnd();
  }

  // Does nothing while an answer is sent. The call then ends when it reads no further request in time.
  void Dismiss(const absl::Status& why) override {
    if (StopReading()) End(why);
  }

  // Replaces the request in message_ by its answer.
  absl::Status TakeAnswer() {
    ServerReflectionRequest request;
    RETURN_IF_ERROR(ParseMessage(message_, kMaxSmallMessageBytes, &request));
    ASSIGN_OR_RETURN(grpc::ByteBuffer answer, Serialize(Answer(request)));
    ASSIGN_OR_RETURN(held_,
                     environment().bytes->Hold(ByteKind::kAnswer, client(), static_cast<int64_t>(answer.Length())));
    message_.Swap(&answer);
    return absl::OkStatus();
  }

  // Finishes the call. No operation may be in progress except a read.
  void End(const absl::Status& status) {
    StartAnswerTimer(0);
    Finish(GrpcStatusOf(status));
  }

  void Read() {
    {
      absl::MutexLock lock(&mutex_);
      is_reading_ = true;
      timer_ = SetTimer(SteadyNow() + environment().times.config, &ReflectionCall::OnSilence);
    }
    StartRead(&message_);
  }

  // Stops the read in progress. Returns true only for the first caller, which decides how the call goes on.
  bool StopReading() {
    absl::MutexLock lock(&mutex_);
    environment().timers->Clear(std::exchange(timer_, 0));
    return std::exchange(is_reading_, false);
  }

  void OnSilence() {
    if (!StopReading()) return;
    environment().metrics->OnCallEndedEarly(error_reason::kStreamIdle);
    End(WithReason(absl::DeadlineExceededError("no request came in time"), error_reason::kStreamIdle));
  }

  grpc::ByteBuffer message_;  // the request, then its answer
  HeldBytes held_;            // for the answer
  absl::Mutex mutex_;
  Timers::Id timer_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_reading_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

void AddReflectionService(const CallEnvironment* environment, RpcRouter* router) {
  for (const char* version : {"v1", "v1alpha"}) {
    router->Add(absl::StrCat("/grpc.reflection.", version, ".ServerReflection/ServerReflectionInfo"), Access::kAny,
                [environment](grpc::CallbackServerContext* context) {
                  return std::make_shared<ReflectionCall>(environment, context);
                });
  }
}

}  // namespace voxserve
