// Tests PlanTable: which plan a number of voxels gets, the default plans, and the rulebook forms that the plans need.

#include "engine/compiler/plan_table.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/compiler/program.h"

namespace voxserve::plan_table_test {
namespace {

constexpr kernels::ConvBlock kBlock = {.rows = 64, .columns = 32, .split_k = 1};
constexpr kernels::ConvBlock kLarge = {.rows = 128, .columns = 32, .split_k = 1};
constexpr ConvPlan kTiled = {
    .map_search = kernels::MapSearch::kHash, .dataflow = Dataflow::kImplicitGemm, .block = kBlock};
constexpr ConvPlan kGrouped = {.map_search = kernels::MapSearch::kHash, .dataflow = Dataflow::kGatherGemmScatter};

// Returns a program with three convolutions: one with its own rulebook, and two that share a rulebook, which the last
// of them reads with inputs and outputs swapped.
Program MakeProgram() {
  Program program;
  program.rulebooks = {{}, {.first_conv = 1}, {.swap_of = 1, .first_conv = 2}};
  const ServedDataflow grouped{.dataflow = Dataflow::kGatherGemmScatter};
  program.convs = {
      {.node = "a",
       .rulebook = 0,
       .is_on_cuda = true,
       .served = {grouped, {Dataflow::kImplicitGemm, {{kBlock, kLarge}}}}},
      {.node = "b", .rulebook = 1, .is_on_cuda = true, .served = {grouped, {Dataflow::kImplicitGemm, {{kBlock}}}}},
      {.node = "c", .rulebook = 2, .is_on_cuda = true, .served = {grouped}}};
  return program;
}

TEST(PlanTableTest, NearestBucketServesBetweenAndBeyond) {
  const Program program = MakeProgram();
  ConvPlan small = kGrouped, large = kGrouped;
  small.grouping.epsilon = 0.1;
  large.grouping.epsilon = 0.9;
  const PlanTable table(program, {{.min_voxels = 100, .max_voxels = 1000, .plan = {.fallback = small}},
                                  {.min_voxels = 1000, .max_voxels = 2000, .plan = {.fallback = large}}});
  for (const int64_t voxels : {0, 99, 100, 999}) EXPECT_EQ(table.ForVoxels(voxels)[0], small) << voxels;
  for (const int64_t voxels : {1000, 1999, 2000, 1 << 30}) EXPECT_EQ(table.ForVoxels(voxels)[0], large) << voxels;
}

// Caches use the id and the index as keys, since a new table may lie at the address of an old one.
TEST(PlanTableTest, HasAnIdAndItsPlansHaveIndices) {
  const Program program = MakeProgram();
  const std::vector<PlanTable::Bucket> buckets = {{.max_voxels = 1000, .plan = {.fallback = kGrouped}},
                                                  {.min_voxels = 1000, .plan = {.fallback = kGrouped}}};
  const PlanTable table(program, buckets), other(program, buckets);
  EXPECT_NE(table.id(), other.id());
  EXPECT_EQ(PlanTable(table).id(), table.id()) << "a copy is the same table";
  EXPECT_EQ(table.IndexOf(table.ForVoxels(1)), 0u);
  EXPECT_EQ(table.IndexOf(table.ForVoxels(5000)), 1u);
  EXPECT_NE(program.id.value(), MakeProgram().id.value());
}

TEST(PlanTableTest, OfAProgramWithoutConvolutionsIsEmpty) { EXPECT_TRUE(PlanTable().ForVoxels(7).empty()); }

TEST(PlanTableTest, NodesHaveTheirOwnPlanOrTheFallback) {
  const PlanTable table(MakeProgram(), {{.plan = {.fallback = kGrouped, .by_node = {{"b", kTiled}}}}});
  EXPECT_EQ(table.ForVoxels(5)[0], kGrouped);
  EXPECT_EQ(table.ForVoxels(5)[1], kTiled);
}

TEST(PlanTableTest, WhatTheDeviceDoesNotServeRunsByTheFallback) {
  ConvPlan odd = kTiled;
  odd.block.rows = 96;
  const PlanTable table(MakeProgram(), {{.plan = {.fallback = kGrouped, .by_node = {{"a", odd}, {"c", kTiled}}}}});
  EXPECT_EQ(table.ForVoxels(5)[0], kGrouped);
  EXPECT_EQ(table.ForVoxels(5)[2], kGrouped);
  // A fallback that the device does not serve is replaced as well.
  const PlanTable tiled(MakeProgram(), {{.plan = {.fallback = kTiled}}});
  EXPECT_EQ(tiled.ForVoxels(5)[0], kTiled);
  EXPECT_EQ(tiled.ForVoxels(5)[2].dataflow, Dataflow::kGatherGemmScatter);
  EXPECT_EQ(tiled.ForVoxels(5)[2].block, kernels::ConvBlock());
}

TEST(PlanTableTest, OnePlanOfEverySizeIsAsItIs) {
  const Program program = MakeProgram();
  const std::vector<ConvPlan> plans = {kTiled, kGrouped, kGrouped};
  const PlanTable table(program, plans);
  for (const int64_t voxels : {int64_t{0}, int64_t{1} << 30, PlanTable::kNoLimit}) {
    EXPECT_EQ(table.ForVoxels(voxels), plans) << voxels;
  }
  EXPECT_EQ(table.forms(), (std::vector<RulebookForms>{{.tiles = true, .sorts_rows = true}, {.pairs = true}, {}}));
}

// These are the plans of a server without a tuned plan.
TEST(PlanTableTest, DefaultsOfAGpu) {
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    for (const bool allow_tf32 : {false, true}) {
      EXPECT_EQ(DefaultCudaConvPlan(dtype, allow_tf32).dataflow, Dataflow::kImplicitGemm);
    }
  }
  // In TensorFloat-32, the matrix products of cuBLASLt are faster than implicit GEMM.
  EXPECT_EQ(DefaultCudaConvPlan(DType::kFloat32, /*allow_tf32=*/true),
            ByDataflow(kDefaultCudaConvPlan, Dataflow::kGatherGemmScatter));
  const ConvPlan exact = DefaultCudaConvPlan(DType::kFloat32, /*allow_tf32=*/false);
  EXPECT_EQ(exact.dataflow, Dataflow::kGatherGemmScatter);
  EXPECT_EQ(exact.grouping.epsilon, 0.2);
  // Convolution "c" cannot run by implicit GEMM, like every convolution on a GPU without the needed instructions.
  const PlanTable table(MakeProgram(), {{.plan = {.fallback = kDefaultCudaConvPlan}}});
  EXPECT_EQ(table.ForVoxels(5), (std::vector<ConvPlan>{kDefaultCudaConvPlan, kDefaultCudaConvPlan, kGrouped}));
}

// Tests the plans by which convolutions run if the CPU makes the kernel maps for a GPU.
TEST(PlanTableTest, UniversalPlansAreOfTheFirstDataflowThatTheDeviceServes) {
  Program program = MakeProgram();
  EXPECT_EQ(UniversalPlans(program, {kTiled, kGrouped, kTiled}), std::vector<ConvPlan>(3, kGrouped));
  constexpr ConvPlan kOnCpu = {.dataflow = Dataflow::kFetchOnDemand, .block = {.rows = 64}};
  for (ProgramConv& conv : program.convs) conv.served = {{.dataflow = Dataflow::kFetchOnDemand}};
  EXPECT_EQ(UniversalPlans(program, {kOnCpu, kOnCpu, kOnCpu}), std::vector<ConvPlan>(3, kOnCpu));
}

TEST(PlanTableTest, RulebooksHaveTheFormsThatAnyBucketReads) {
  Program program = MakeProgram();
  using Forms = std::vector<RulebookForms>;
  EXPECT_EQ(PlanTable(program, {{.plan = {.fallback = kGrouped}}}).forms(),
            (Forms{{.pairs = true}, {.pairs = true}, {}}));
  // Convolution "c" cannot run by implicit GEMM, which reads tiles, so its rulebook needs pairs too.
  EXPECT_EQ(PlanTable(program, {{.plan = {.fallback = kTiled}}}).forms(),
            (Forms{{.tiles = true, .sorts_rows = true}, {.pairs = true, .tiles = true, .sorts_rows = true}, {}}));
  program.convs[2].served.push_back({Dataflow::kImplicitGemm, {{kBlock}}});
  EXPECT_EQ(
      PlanTable(program, {{.plan = {.fallback = kTiled}}}).forms(),
      (Forms{{.tiles = true, .sorts_rows = true}, {.tiles = true, .swapped_tiles = true, .sorts_rows = true}, {}}));
  EXPECT_EQ(PlanTable(program, {{.max_voxels = 10, .plan = {.fallback = kTiled}},
                                {.min_voxels = 10, .plan = {.fallback = kGrouped}}})
                .forms()[0],
            (RulebookForms{.pairs = true, .tiles = true, .sorts_rows = true}));
}

// Sorted rows save products, of which a large kernel of few channels has few.
TEST(PlanTableTest, RowsOfLargeKernelsWithFewChannelsAreNotSorted) {
  Program program = MakeProgram();
  const auto sorts_rows = [&] { return PlanTable(program, {{.plan = {.fallback = kTiled}}}).forms()[0].sorts_rows; };
  EXPECT_TRUE(sorts_rows());
  for (ProgramConv& conv : program.convs) {
    conv.num_offsets = 125;
    conv.in_channels = 6;
  }
  EXPECT_FALSE(sorts_rows());
  for (ProgramConv& conv : program.convs) conv.in_channels = 32;
  EXPECT_TRUE(sorts_rows());
}

TEST(PlanTableTest, PoolsReadNeighboursWhateverThePlan) {
  Program program = MakeProgram();
  program.rulebooks[0].is_pooled = true;
  program.rulebooks[2].is_pooled = true;
  EXPECT_EQ(PlanTable(program, {{.plan = {.fallback = kGrouped}}}).forms(),
            (std::vector<RulebookForms>{
                {.pairs = true, .neighbours = true}, {.pairs = true, .swapped_neighbours = true}, {}}));
}

}  // namespace
}  // namespace voxserve::plan_table_test
