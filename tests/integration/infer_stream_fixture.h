#pragma once

// InferStreamTest is the fixture of tests of the RPC InferStream, by a Server with a FakeEngine.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tests/integration/fake_server.h"
#include "tests/integration/vehicle.h"

namespace voxserve {

// Maps a frame's number to "OK" or to the reason of its error.
using Outcomes = std::map<uint64_t, std::string>;

// Returns the numbers 1, 2, ..., last.
inline std::vector<uint64_t> UpTo(uint64_t last) {
  std::vector<uint64_t> ids(last);
  std::iota(ids.begin(), ids.end(), 1);
  return ids;
}

class InferStreamTest : public FakeServerTest {
 protected:
  // Expects that the server still answers an Infer call.
  void ExpectServerLives() {
    v1::InferResponse response;
    const grpc::Status status = client_->Infer(RequestOf("fake", 10), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  // Expects that a stream with this configuration ends with this code and reason, and a message that contains `text`.
  void ExpectRefused(const v1::StreamConfig& config, grpc::StatusCode code, const std::string& reason,
                     const std::string& text) {
    Vehicle vehicle(client_.get(), config);
    const grpc::Status& status = vehicle.End();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_EQ(ReasonOf(status), reason);
    EXPECT_THAT(status.error_message(), testing::HasSubstr(text));
  }

  bool AwaitNoStreams() { return AwaitMetric(R"(voxserve_streams{model="fake"})", 0); }
};

}  // namespace voxserve
