// Tests attention in networks against an interpreter of graphs. The queries and the keys are sites of one level, sites
// of two levels, points, or learned rows (sample_rows). Attention never mixes samples.

#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/executor/program_comparison.h"

namespace voxserve::attention_test {
namespace {

using kernels::PoolReduce;

class AttentionNetworkTest : public testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Devices, AttentionNetworkTest, support::AllDevices(), support::DeviceName);

TEST_P(AttentionNetworkTest, AmongTheSitesOfALevel) {
  for (const int num_heads : {1, 2, 4}) {
    GraphBuilder b(static_cast<uint32_t>(num_heads));
    const int stem = b.Submanifold(0, 8, true);
    const int attention =
        b.Attention(b.Linear(stem, 12, true), b.Linear(stem, 12, false), b.Linear(stem, 8, true), num_heads, 0.7f);
    // The layers after attention must not be fused into it.
    const Graph graph = b.Finish(b.Linear(b.Relu(b.Norm(b.Sum(attention, stem))), 3, true));
    ExpectEqual(GetParam(), graph, 1);
    ExpectEqual(GetParam(), graph, 2);
  }
}

TEST_P(AttentionNetworkTest, OfCoarseSitesByFineOnes) {
  GraphBuilder b(10, kernels::CoordinateRule::kPadded);
  const int stem = b.Submanifold(0, 6, true);
  const int down = b.Down(stem, 6);
  const int attention = b.Attention(stem, down, b.Linear(down, 4, true), 2, 1);
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Concat({stem, attention}), 3, true)), 10);
}

TEST_P(AttentionNetworkTest, OfSitesByPoints) {
  GraphBuilder b(20);
  const int stem = b.Submanifold(0, 4, true);
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Attention(b.PointFeatures(), stem, stem, 1, 1), 3, true)), 20);
}

// Tests the tokens of SVT-Net: attention gathers a sample's sites into tokens, lets the tokens attend to each other,
// and brings them back to the sites.
TEST_P(AttentionNetworkTest, ThroughRowsOfSamples) {
  for (const int num_rows : {1, 2, 5}) {
    GraphBuilder b(static_cast<uint32_t>(30 + num_rows));
    const int stem = b.Submanifold(0, 6, true);
    const int learned = b.SampleRows(num_rows, 6);
    const int tokens = b.Attention(learned, stem, b.Linear(stem, 8, true), 2, 1);
    const int mixed = b.Attention(b.Linear(tokens, 8, false), b.Linear(tokens, 8, false), tokens, 1, 0.5f);
    const int sum = b.Relu(b.Norm(b.Sum(b.Linear(mixed, 8, true), tokens)));
    const int both = b.Concat({sum, learned});
    const int back = b.Attention(b.Linear(stem, 14, true), both, both, 1, 1);
    ExpectEqual(GetParam(), b.Finish(b.Linear(back, 3, true)), 30);
  }
}

TEST_P(AttentionNetworkTest, OfThePooledRowOfASample) {
  GraphBuilder b(40);
  const int stem = b.Submanifold(0, 6, true);
  const int global = b.Sum(b.GlobalPool(stem, PoolReduce::kAverage), b.SampleRows(1, 6));
  ExpectEqual(GetParam(), b.Finish(b.Linear(b.Attention(stem, global, global, 1, 1), 3, true)), 40);
}

// All clouds of the batch are empty.
TEST_P(AttentionNetworkTest, BatchWithoutASite) {
  GraphBuilder b(50);
  const int tokens = b.Attention(b.SampleRows(4, 4), 0, 0, 1, 1);
  const Graph graph = b.Finish(b.Linear(b.Attention(0, tokens, tokens, 1, 1), 3, true));
  const PointCloud empty = *PointCloud::FromFloats({"x", "y", "z", "f"}, nullptr, 0);
  const auto runner = DeviceRunner::Create({.device = GetParam()});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto program = (*runner)->Compile(graph, {.device = GetParam()});
  ASSERT_TRUE(program.ok()) << program.status();
  const BatchReport output = (*runner)->Run(*program, {&empty, &empty}, true);
  ASSERT_TRUE(output.status.ok()) << output.status;
  for (const InferResult& sample : output.samples) EXPECT_TRUE(sample.status.ok()) << sample.status;
}

}  // namespace
}  // namespace voxserve::attention_test
