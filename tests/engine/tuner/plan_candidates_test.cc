// Tests the candidates that a plan search measures.

#include "engine/tuner/plan_candidates.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/engine/tuner/fake_program.h"

namespace voxserve::plan_candidates_test {
namespace {

using kernels::MapSearch;

// No convolution may have the same plan in two runs, except the default, so that nothing is measured twice.
TEST(PlanCandidates, AreDistinct) {
  const Program program = FakeProgram(/*is_on_cuda=*/true);
  RulebookSizes sizes;
  for (const ProgramRulebook& rulebook : program.rulebooks) sizes.push_back(SizesOf(rulebook, 92000));
  const NetworkPlan defaults = program.default_plans.ForVoxels(0);
  const std::vector<NetworkPlan> runs = CandidateRuns(program, defaults, sizes);
  EXPECT_EQ(runs[0], defaults);
  EXPECT_GT(runs.size(), 20u);
  EXPECT_LT(runs.size(), 400u);
  for (size_t conv = 0; conv < defaults.size(); ++conv) {
    std::set<std::string> seen;
    for (const NetworkPlan& run : runs) {
      if (run[conv] == defaults[conv]) continue;
      EXPECT_TRUE(seen.insert(Describe(run[conv])).second) << Describe(run[conv]);
    }
    EXPECT_GT(seen.size(), 2u);
  }
}

TEST(PlanCandidates, AreDescribed) {
  EXPECT_EQ(Describe(kGrouped), "gather_gemm_scatter ADAPTIVE(0.80, inf) HASH");
  EXPECT_EQ(Describe({.map_search = MapSearch::kHash,
                      .dataflow = Dataflow::kImplicitGemm,
                      .block = {.rows = 128, .columns = 96, .split_k = 2, .uses_mma_sync = true}}),
            "implicit_gemm 128 x 96 by warps, split 2 HASH");
  EXPECT_EQ(Describe({.map_search = MapSearch::kGrid, .block = {.rows = 128}}), "fetch_on_demand 128 rows GRID");
}

}  // namespace
}  // namespace voxserve::plan_candidates_test
