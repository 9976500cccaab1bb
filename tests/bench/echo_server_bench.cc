// Runs a gRPC server with voxserve's service that computes nothing, as a yardstick for benchmarks of the real server.
// It answers every Infer at once with as many bytes of labels as the cloud has points. A client therefore measures only
// the cost of gRPC, the messages and the machine. The server is set up as server/server.cc sets up voxserve's.
//
//   echo_server_bench [--host 127.0.0.1] [--port 0]
//
// Prints "listening on HOST:PORT" and serves until SIGTERM or SIGINT. With port 0 it takes a free port.

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/options.h"
#include "voxserve/v1/inference.grpc.pb.h"

namespace voxserve {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr size_t kGrpcMemoryBytes = size_t{2} << 30;  // the real server's default on a machine with enough memory
constexpr int kMaxStreamsOfConnection = 4096;         // more than any load generator keeps in flight

class EchoService final : public v1::InferenceService::CallbackService {
 public:
  explicit EchoService(uint64_t max_points) : max_points_(max_points) {}

  grpc::ServerUnaryReactor* Infer(grpc::CallbackServerContext* context, const v1::InferRequest* request,
                                  v1::InferResponse* response) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const uint64_t num_points = request->cloud().num_points();
    if (num_points > max_points_) {
      reactor->Finish({grpc::StatusCode::INVALID_ARGUMENT, absl::StrCat(num_points, " points do not fit a message")});
      return reactor;
    }
    response->set_model(request->model());
    response->set_version(1);
    response->set_request_id(request->request_id());
    response->mutable_segmentation()->set_bytes_per_label(1);
    response->mutable_segmentation()->set_labels(std::string(num_points, '\0'));
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  // Answers clients that ask about a model before they send.
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context, const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override {
    v1::ModelVersion* model = response->mutable_model();
    model->set_name(request->model());
    model->set_version(1);
    model->set_state(v1::MODEL_STATE_READY);
    model->set_max_points(max_points_);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  const uint64_t max_points_;
};

int Usage(const std::string& problem) {
  std::fprintf(stderr, "echo_server_bench: %s\nusage: echo_server_bench [--host HOST] [--port N]\n", problem.c_str());
  return kExitUsage;
}

int Main(int argc, char** argv) {
  std::string host = "127.0.0.1";
  int port = 0;
  for (int i = 1; i < argc; i += 2) {
    const absl::string_view flag = argv[i];
    if (i + 1 == argc) return Usage(absl::StrCat(flag, " needs a value"));
    if (flag == "--host") {
      host = argv[i + 1];
    } else if (flag == "--port") {
      if (!absl::SimpleAtoi(argv[i + 1], &port) || port < 0 || port > 65535) {
        return Usage(absl::StrCat("--port is 0 to 65535, not '", argv[i + 1], "'"));
      }
    } else {
      return Usage(absl::StrCat("unknown flag '", flag, "'"));
    }
  }

  // The signals are blocked before the first thread starts, so that all threads inherit the mask.
  sigset_t stop_signals;
  sigemptyset(&stop_signals);
  sigaddset(&stop_signals, SIGTERM);
  sigaddset(&stop_signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop_signals, nullptr);

  const Options limits;
  EchoService service(static_cast<uint64_t>(limits.max_message_bytes));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ResourceQuota quota("echo");
  quota.Resize(kGrpcMemoryBytes);
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(static_cast<int>(limits.max_message_bytes));
  builder.SetMaxSendMessageSize(static_cast<int>(limits.max_message_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsOfConnection);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  int bound_port = 0;
  builder.AddListeningPort(absl::StrCat(host, ":", port), grpc::InsecureServerCredentials(), &bound_port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || bound_port == 0) {
    std::fprintf(stderr, "echo_server_bench: cannot listen on %s:%d\n", host.c_str(), port);
    return kExitFailed;
  }
  std::printf("listening on %s:%d\n", host.c_str(), bound_port);
  std::fflush(stdout);

  int signal = 0;
  sigwait(&stop_signals, &signal);
  server->Shutdown(std::chrono::system_clock::now());
  server->Wait();
  return 0;
}

}  // namespace
}  // namespace voxserve

int main(int argc, char** argv) { return voxserve::Main(argc, argv); }
