#include "tests/client/fake_admin.h"

#include <string>
#include <utility>

#include "tests/client/fake_errors.h"

namespace voxserve::client {
namespace {

template <typename Request, typename Response>
grpc::Status AnswerVersions(grpc::ServerContext* context, const Request& request, Response* response) {
  const std::string& model = request.model();
  if (model == "broken") {
    return Error(grpc::StatusCode::FAILED_PRECONDITION,
                 "model 'broken' version 1 has 2 problems: no tensor conv1.weight; no tensor conv1.bias", "BAD_MODEL");
  }
  if (model == "slow") return AwaitCancellation(context);
  if (model == "wide") return grpc::Status::OK;
  if (model != "segmenter") return ModelNotFound(model);
  if (request.version() != 0) {
    response->add_versions(request.version());
  } else {
    for (const int64_t version : {1, 2}) response->add_versions(version);
  }
  return grpc::Status::OK;
}

}  // namespace

grpc::Status FakeAdmin::TunePlan(grpc::ServerContext* context, const v1::TunePlanRequest* request,
                                 grpc::ServerWriter<v1::TunePlanUpdate>* writer) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    last_request_ = *request;
  }
  const std::string& model = request->model();
  if (model == "full") {
    return Error(grpc::StatusCode::FAILED_PRECONDITION, "a plan for full is being searched", "ALREADY_TUNING");
  }
  if (model == "slow") return AwaitCancellation(context);
  if (model != "segmenter" && model != "wide" && model != "liar") return ModelNotFound(model);
  for (const auto& [stage, fraction] : {std::pair<const char*, double>{"waiting for scans", 0},
                                        {"candidates", 0.25},
                                        {"candidates", 0.5},
                                        {"checking", 0.999}}) {
    v1::TunePlanUpdate update;
    update.mutable_progress()->set_stage(stage);
    update.mutable_progress()->set_fraction(fraction);
    writer->Write(update);
  }
  if (model == "liar") return grpc::Status::OK;
  v1::TunePlanUpdate update;
  v1::TunePlanResult& result = *update.mutable_result();
  result.set_device("NVIDIA H200");
  result.set_num_scans(7);
  result.set_seconds(61.5);
  if (model != "wide") result.set_path("/plans/segmenter.textproto");
  const uint64_t limits[] = {0, 50'000, 100'000, 0};
  for (int i = 0; i < 3; ++i) {
    v1::TunedBucket& bucket = *result.add_buckets();
    bucket.set_min_voxels(limits[i]);
    bucket.set_max_voxels(limits[i + 1]);
    bucket.set_num_scans(i + 1);
    bucket.set_default_ms(3.0 * (i + 1));
    bucket.set_tuned_ms(2.0 * (i + 1));
  }
  writer->Write(update);
  return grpc::Status::OK;
}

grpc::Status FakeAdmin::LoadModel(grpc::ServerContext* context, const v1::LoadModelRequest* request,
                                  v1::LoadModelResponse* response) {
  return AnswerVersions(context, *request, response);
}

grpc::Status FakeAdmin::UnloadModel(grpc::ServerContext* context, const v1::UnloadModelRequest* request,
                                    v1::UnloadModelResponse* response) {
  return AnswerVersions(context, *request, response);
}

v1::TunePlanRequest FakeAdmin::last_request() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_request_;
}

}  // namespace voxserve::client
