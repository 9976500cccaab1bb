#pragma once

// EngineServerTest is the fixture of tests of a Server with the real engine on the CPU, with models that the test
// writes. The server runs in this process on free ports.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/serving/engine.h"
#include "tests/integration/server_test.h"
#include "tests/support/await_true.h"
#include "tests/support/model_folder.h"

namespace voxserve {

// Returns a request. points: x, y, z and intensity of each point, one point after the other.
inline v1::InferRequest Request(const std::string& model, const std::vector<float>& points) {
  v1::InferRequest request = RequestOf(model, 0);
  request.mutable_cloud()->set_num_points(points.size() / 4);
  request.mutable_cloud()->set_data(points.data(), points.size() * sizeof(float));
  return request;
}

inline std::vector<int> Labels(const v1::InferResponse& response) {
  std::vector<int> labels;
  for (const char label : response.segmentation().labels()) labels.push_back(static_cast<unsigned char>(label));
  return labels;
}

class EngineServerTest : public ServerTest {
 protected:
  // Starts the server and waits until the models are loaded.
  void Start(const std::string& repository) {
    StartServer({}, [&](EngineObserver* observer, MemoryBudget* memory_budget) {
      return Engine::Create(
          {.model_repository = repository, .devices = "cpu", .memory_budget = memory_budget, .observer = observer});
    });
    ASSERT_TRUE(support::AwaitTrue([this] { return Body("/readyz") != "loading models\n"; }));
  }

  // Returns the body of an HTTP page.
  std::string Body(const std::string& path) const { return Get(path).second; }

  v1::InferResponse InferOk(const v1::InferRequest& request) {
    v1::InferResponse response;
    const grpc::Status status = client_->Infer(request, &response, absl::Seconds(120));
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  // Expects that the server refuses the request with this code and reason. Returns the error's message.
  std::string ExpectRefused(const v1::InferRequest& request, grpc::StatusCode code, const std::string& reason) {
    v1::InferResponse response;
    const grpc::Status status = client_->Infer(request, &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(ReasonOf(status), reason);
    return status.error_message();
  }

  support::TemporaryFolder folder_;
};

}  // namespace voxserve
