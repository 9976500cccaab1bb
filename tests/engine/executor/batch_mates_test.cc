// Tests that a sample's result never depends on the other samples of its batch. The networks together use every
// operator (operator_networks.h). Each sample runs in random batches with different other samples and orders.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "tests/engine/box_matching.h"
#include "tests/engine/executor/expected_scores.h"
#include "tests/engine/executor/operator_networks.h"
#include "voxserve/model/v1/model.pb.h"

namespace voxserve::batch_mates_test {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// ---- What the networks cover -------------------------------------------------------------------------------------

const google::protobuf::OneofDescriptor& Operators() { return *model::v1::Node::descriptor()->FindOneofByName("op"); }

// Returns the nodes that some output depends on.
std::vector<model::v1::Node> ComputedNodes(const support::TestModel& model) {
  model::v1::Model proto;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(model.graph, &proto));
  std::set<std::string> wanted;
  for (const model::v1::Output& output : proto.outputs()) wanted.insert(output.node());
  std::vector<model::v1::Node> nodes;
  for (size_t before = 0; before != wanted.size();) {  // until the set no longer grows
    before = wanted.size();
    nodes.clear();
    for (const model::v1::Node& node : proto.nodes()) {
      if (wanted.count(node.name()) == 0) continue;
      nodes.push_back(node);
      wanted.insert(node.inputs().begin(), node.inputs().end());
      if (node.has_attention()) wanted.insert(node.attention().groups_of());  // may be ""
    }
  }
  return nodes;
}

// Returns false for an operator that the file format has but the loader does not support.
bool IsKnownToTheLoader(const FieldDescriptor& op) {
  const support::TestModel model{.graph = absl::StrCat("nodes { name: \"one\" ", op.name(), " {} }")};
  return !absl::StrContains(LoadTestGraph(model).status().message(), "\"one\": has no operator");
}

// Maps each enum of the file format to the values that fields of the networks have.
using UsedValues = std::map<const EnumDescriptor*, std::set<int>>;

void AddEnumValues(const Message& message, UsedValues* used) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* const field : fields) {
    if (field->enum_type() == nullptr || field->is_repeated()) continue;
    (*used)[field->enum_type()].insert(message.GetReflection()->GetEnumValue(message, field));
  }
}

TEST(OperatorNetworksTest, HaveEveryOperatorAndEveryOneOfItsKinds) {
  std::set<std::string> covered;
  UsedValues used;
  for (const OperatorNetwork& network : OperatorNetworks()) {
    for (const model::v1::Node& node : ComputedNodes(network.model)) {
      const FieldDescriptor* const op = node.GetReflection()->GetOneofFieldDescriptor(node, &Operators());
      ASSERT_NE(op, nullptr) << network.name << ": " << node.name();
      covered.insert(op->name());
      AddEnumValues(node.GetReflection()->GetMessage(node, op), &used);
    }
  }
  for (int i = 0; i < Operators().field_count(); ++i) {
    const FieldDescriptor& op = *Operators().field(i);
    EXPECT_TRUE(covered.count(op.name()) > 0 || !IsKnownToTheLoader(op))
        << "no network of OperatorNetworks() has the operator " << op.name();
  }
  for (const auto& [type, values] : used) {
    for (int i = 0; i < type->value_count(); ++i) {
      const google::protobuf::EnumValueDescriptor& value = *type->value(i);
      EXPECT_TRUE(value.number() == 0 || values.count(value.number()) > 0)
          << "no network of OperatorNetworks() has " << value.full_name();
    }
  }
}

// A convolution of a single cell is computed as a matrix product, whose algorithm may depend on the number of rows.
TEST(OperatorNetworksTest, HaveConvolutionsOfASingleCellThatDecodersRead) {
  int num_read = 0;
  for (const OperatorNetwork& network : OperatorNetworks()) {
    const absl::StatusOr<Graph> graph = LoadTestGraph(network.model);
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (const GraphNode& node : graph->nodes) {
      if (!IsDecoder(node.op)) continue;
      num_read += std::count_if(node.inputs.begin(), node.inputs.end(), [&](int image) {
        const auto* const conv = std::get_if<Conv2dOp>(&graph->nodes[static_cast<size_t>(image)].op);
        return conv != nullptr && conv->geometry == kernels::Conv2dGeometry();
      });
    }
  }
  EXPECT_GE(num_read, 8) << "five of CenterPoint, three of SECOND";
}

// ---- What samples become in company ------------------------------------------------------------------------------

// Returns random points. Most are within the networks' range, some are outside it or not a number, and some voxels have
// several points.
PointCloud RandomCloud(int num_points, std::mt19937& random) {
  std::uniform_real_distribution<float> unit(0, 1);
  std::vector<float> values;
  for (int i = 0; i < num_points; ++i) {
    for (const float size : {6.0f, 5.0f, 4.0f}) values.push_back(unit(random) * size);
    values.push_back(2 * unit(random) - 1);
    float* const point = &values[values.size() - 4];
    if (i > 0 && unit(random) < 0.3f) {  // this point is near an earlier one
      for (int axis = 0; axis < 3; ++axis) point[axis] = values[static_cast<size_t>(axis)] + 0.01f * unit(random);
    }
    if (num_points > 1 && unit(random) < 0.05f) point[0] = -point[0] - 0.1f;
    if (num_points > 1 && unit(random) < 0.05f) point[1] = std::numeric_limits<float>::quiet_NaN();
  }
  return *PointCloud::FromFloats({"x", "y", "z", "f"}, values.data(), static_cast<size_t>(num_points));
}

std::vector<Variant> BatchVariants(support::Device device) {
  std::vector<Variant> variants = VariantsOf(device);
  if (device == support::Device::kCpu) return variants;
  for (const bool is_half : {false, true}) {
    variants.push_back({.name = is_half ? "DeterministicHalf" : "Deterministic",
                        .device = device,
                        .precision = is_half ? ModelConfig::Precision::kFloat16 : ModelConfig::Precision::kFloat32,
                        .plan = kDefaultCudaConvPlan,
                        .is_deterministic = true});
  }
  return variants;
}

void ExpectSameCounts(const PointCounts& counts, const PointCounts& expected) {
  EXPECT_EQ(counts.used, expected.used);
  EXPECT_EQ(counts.invalid, expected.invalid);
  EXPECT_EQ(counts.out_of_range, expected.out_of_range);
  EXPECT_EQ(counts.dropped, expected.dropped);
  EXPECT_EQ(counts.unsampled, expected.unsampled);
  EXPECT_EQ(counts.voxels, expected.voxels);
}

void ExpectSameBoxes(const std::vector<Box>& boxes, const std::vector<Box>& expected, double tolerance) {
  ASSERT_EQ(boxes.size(), expected.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    EXPECT_EQ(boxes[i].class_id, expected[i].class_id) << i;
    for (float Box::*const field : {&Box::score, &Box::x, &Box::y, &Box::z, &Box::length, &Box::width, &Box::height,
                                    &Box::yaw, &Box::velocity_x, &Box::velocity_y}) {
      ASSERT_TRUE(std::isfinite(boxes[i].*field)) << i;
      ASSERT_NEAR(boxes[i].*field, expected[i].*field, tolerance * std::max(1.0f, std::abs(expected[i].*field))) << i;
    }
  }
}

// In half precision, rounding decides which boxes remain if an overlap is near the threshold or two scores are nearly
// equal. So three of 20 boxes may differ. Weights that are changed by ten times a float16's rounding error change at
// most two boxes. Two different samples with more than two points have at most 15 of 20 boxes in common.
void ExpectAlmostTheSameBoxes(const std::vector<Box>& boxes, const std::vector<Box>& expected) {
  const BoxMatches matches = MatchBoxes(RowsOf(boxes), RowsOf(expected), {.number = 0.02f, .score = 0.005f});
  ASSERT_GE(matches.num_matched, 0.85 * static_cast<double>(std::max(boxes.size(), expected.size())))
      << matches.ToString();
}

// If the tolerance is 0, the bytes must be equal.
void ExpectSameSample(const InferResult& sample, const InferResult& expected, double tolerance) {
  ASSERT_EQ(sample.status, expected.status);
  ExpectSameCounts(sample.counts, expected.counts);
  ASSERT_EQ(sample.scores().size(), expected.scores().size());
  double largest = 1;
  for (const float score : expected.scores()) largest = std::max(largest, double{std::abs(score)});
  for (size_t i = 0; i < expected.scores().size(); ++i) {
    ASSERT_TRUE(std::isfinite(sample.scores()[i])) << i;
    ASSERT_NEAR(sample.scores()[i], expected.scores()[i], tolerance * largest) << i;
  }
  if (tolerance < 1e-3) {
    ASSERT_NO_FATAL_FAILURE(ExpectSameBoxes(sample.boxes(), expected.boxes(), 10 * tolerance));
  } else {
    ASSERT_NO_FATAL_FAILURE(ExpectAlmostTheSameBoxes(sample.boxes(), expected.boxes()));
  }
  ASSERT_EQ(sample.labels().size(), expected.labels().size());
  const size_t num_classes = expected.labels().empty() ? 0 : expected.scores().size() / expected.labels().size();
  for (size_t point = 0; point < expected.labels().size(); ++point) {
    if (sample.labels()[point] == expected.labels()[point]) continue;
    // If two classes have nearly the same score, rounding decides the label.
    ASSERT_LT(std::max(sample.labels()[point], expected.labels()[point]), num_classes) << point;
    const float* const row = &expected.scores()[point * num_classes];
    ASSERT_LE(std::abs(row[sample.labels()[point]] - row[expected.labels()[point]]), 2 * tolerance * largest) << point;
    ASSERT_GT(tolerance, 0) << point;
  }
}

class BatchMatesTest : public ::testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(GetParam());
    std::mt19937 random(6);
    for (const int num_points : {0, 1, 2, 30, 60, 150, 300, 1}) clouds_.push_back(RandomCloud(num_points, random));
    std::uniform_int_distribution<size_t> any(0, clouds_.size() - 1), size(1, 6);
    for (int i = 0; i < 6; ++i) {
      batches_.emplace_back(size(random));
      for (size_t& cloud : batches_.back()) cloud = any(random);
    }
    batches_.push_back({0, 4, 0, 1, 5, 0});
    batches_.push_back({5, 1, 4, 4, 0});
    batches_.push_back({0, 0});
    auto runner = DeviceRunner::Create({.device = GetParam()});
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
  }

  // Runs all batches under these limits, and each cloud as the only one of its batch. Expects equal results, and
  // returns the results of the clouds that ran on their own.
  std::vector<InferResult> ExpectSameInCompany(const Graph& graph, const Variant& variant, const RunLimits& limits) {
    SCOPED_TRACE(variant.name);
    std::vector<InferResult> alone;
    const auto program = runner_->Compile(graph, variant);
    EXPECT_TRUE(program.ok()) << program.status();
    if (!program.ok()) return alone;
    const double tolerance = variant.is_deterministic                                ? 0
                             : variant.precision == ModelConfig::Precision::kFloat16 ? 1e-2
                                                                                     : 1e-5;
    for (const PointCloud& cloud : clouds_) {
      BatchReport output = runner_->Run(*program, {&cloud}, true, limits);
      EXPECT_TRUE(output.status.ok()) << output.status;
      alone.push_back(output.samples.empty() ? InferResult() : std::move(output.samples[0]));
    }
    for (const std::vector<size_t>& batch : batches_) {
      std::vector<const PointCloud*> together;
      for (const size_t cloud : batch) together.push_back(&clouds_[cloud]);
      const BatchReport output = runner_->Run(*program, together, true, limits);
      EXPECT_TRUE(output.status.ok()) << output.status;
      for (size_t i = 0; i < batch.size() && !HasFatalFailure(); ++i) {
        SCOPED_TRACE(absl::StrCat("cloud ", batch[i], " as number ", i, " of ", batch.size()));
        ExpectSameSample(output.samples[i], alone[batch[i]], tolerance);
      }
    }
    return alone;
  }

  std::vector<PointCloud> clouds_;
  std::vector<std::vector<size_t>> batches_;  // each batch lists indices of clouds_
  std::unique_ptr<DeviceRunner> runner_;
};
INSTANTIATE_TEST_SUITE_P(Devices, BatchMatesTest, support::AllDevices(), support::DeviceName);

TEST_P(BatchMatesTest, ASampleIsInCompanyWhatItIsAlone) {
  for (const OperatorNetwork& network : OperatorNetworks()) {
    SCOPED_TRACE(network.name);
    const absl::StatusOr<Graph> graph = LoadTestGraph(network.model);
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (const Variant& variant : BatchVariants(GetParam())) {
      size_t num_answers = 0;
      for (const InferResult& sample : ExpectSameInCompany(*graph, variant, {})) {
        EXPECT_TRUE(sample.status.ok()) << sample.status;
        num_answers += sample.labels().size() + sample.boxes().size();
      }
      ASSERT_FALSE(HasFailure());
      EXPECT_GT(num_answers, 20u) << "there is something to compare";
    }
  }
}

// Tests samples with more voxels than the limit. Each overflow policy must choose a sample's voxels by this sample
// only, not by the other samples of its batch.
TEST_P(BatchMatesTest, ASampleKeepsTheVoxelsThatItKeepsAlone) {
  using Overflow = ModelConfig::VoxelOverflow;
  for (const OperatorNetwork& network : OperatorNetworks()) {
    SCOPED_TRACE(network.name);
    const absl::StatusOr<Graph> graph = LoadTestGraph(network.model);
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (const Overflow overflow : {Overflow::kReject, Overflow::kNearestFirst, Overflow::kFirstSeen}) {
      SCOPED_TRACE(static_cast<int>(overflow));
      const RunLimits limits{.max_voxels = 20, .voxel_overflow = overflow};
      int64_t num_whole = 0, num_dropped = 0, num_refused = 0;
      for (const InferResult& sample : ExpectSameInCompany(*graph, BatchVariants(GetParam())[0], limits)) {
        EXPECT_LE(sample.counts.voxels, 20);
        num_whole += sample.status.ok() && sample.counts.dropped == 0;
        num_dropped += sample.counts.dropped;
        num_refused += !sample.status.ok();
      }
      ASSERT_FALSE(HasFailure());
      EXPECT_GE(num_whole, 3);
      EXPECT_GT(num_dropped, 0);
      EXPECT_EQ(num_refused > 0, overflow == Overflow::kReject);
    }
  }
}

}  // namespace
}  // namespace voxserve::batch_mates_test
