// Tests output tensors through the engine's public interface: a request gets the tensors that it names, and a request
// that can never be answered is refused before it runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "tests/engine/serving/test_engine.h"
#include "tests/support/model_folder.h"
#include "tests/support/test_device.h"

namespace voxserve::engine_tensors_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGraph[] = R"(name: "tensors"
nodes {
  name: "voxels"
  voxelize {
    voxel_size: [1, 1, 1]
    rounding: ROUNDING_FLOOR
    origin: ORIGIN_ZERO
    reduce: REDUCE_FIRST
    features { name: "f" unit: "1" }
  }
}
nodes { name: "head" inputs: ["voxels"] linear { out_channels: 1 } }
nodes { name: "points" inputs: ["head", "voxels"] voxel_to_point {} }
nodes { name: "best" inputs: ["head"] global_pool { reduce: REDUCE_MAX } }
outputs { kind: KIND_TENSOR node: "points" name: "points" }
outputs { kind: KIND_TENSOR node: "best" name: "best" }
)";

class EngineTensorsTest : public ::testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(GetParam());
    support::TestModel model;
    model.graph = kGraph;
    model.weights = {{"head.weight", support::FloatTensor({1, 1}, {2})}};
    model.WriteTo(folder_.path() / "tensors");
  }
  Engine::Options Options(int64_t max_answer_bytes) {
    return {.model_repository = folder_.path().string(),
            .max_answer_bytes = max_answer_bytes,
            .devices = GetParam() == support::Device::kCpu ? "cpu" : "cuda:0"};
  }

  // Asks for tensors of ten points in a row. In float32, tensor "points" has 40 bytes and tensor "best" has 4.
  static absl::StatusOr<InferResult> Ask(Engine& engine, const std::vector<std::string>& names,
                                         DType type = DType::kFloat32) {
    std::vector<float> values;
    for (int i = 0; i < 10; ++i) values.insert(values.end(), {static_cast<float>(i), 0, 0, static_cast<float>(i)});
    InferTask task{.model = "tensors", .tensors = names, .tensor_dtype = type};
    task.cloud = *PointCloud::FromFloats({"x", "y", "z", "f"}, values.data(), 10);
    return Infer(engine, std::move(task));
  }
  static std::vector<std::string> NamesOf(const absl::StatusOr<InferResult>& result) {
    std::vector<std::string> names;
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return names;
    for (const OutputTensor& tensor : result->tensors) names.push_back(tensor.info.name);
    return names;
  }

  const support::TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Devices, EngineTensorsTest, support::AllDevices(), support::DeviceName);

TEST_P(EngineTensorsTest, ATaskGetsWhatItNames) {
  const auto engine = MakeEngine(Options(0));
  EXPECT_THAT(NamesOf(Ask(*engine, {})), ElementsAre("points", "best"));
  EXPECT_THAT(NamesOf(Ask(*engine, {"best", "best"})), ElementsAre("best"));
  EXPECT_THAT(NamesOf(Ask(*engine, {"best", "points"})), ElementsAre("points", "best"));
  const absl::Status unknown = Ask(*engine, {"best", "nobody"}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(unknown), error_reason::kUnsupportedOutput);
}

TEST_P(EngineTensorsTest, AnAnswerThatIsCertainToBeTooLargeIsRefused) {
  const auto engine = MakeEngine(Options(43));
  const absl::Status refused = Ask(*engine, {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(refused), error_reason::kResponseTooLarge);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("44 bytes, more than the limit of 43"));
  EXPECT_THAT(NamesOf(Ask(*engine, {"points"})), ElementsAre("points"));
  EXPECT_THAT(NamesOf(Ask(*engine, {}, DType::kFloat16)), ElementsAre("points", "best"));
}

TEST_P(EngineTensorsTest, ANegativeLimitIsNamed) {
  EXPECT_THAT(std::string(Engine::Create(Options(-1)).status().message()), HasSubstr("max_answer_bytes is -1"));
}

}  // namespace
}  // namespace voxserve::engine_tensors_test
