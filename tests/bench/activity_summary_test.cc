// Tests how records of GPU work and CUDA calls are added up by stage and kernel (activity_summary.h). Needs no GPU.

#include "tests/bench/activity_summary.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace voxserve::bench::activity_summary_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Kind = DeviceActivity::Kind;

TEST(StageOfTest, TheInnermostKnownRangeDecidesThenTheKernel) {
  EXPECT_EQ(StageOf({"features", "ScatterAccumulate"}, "GatherKernel"), "scatter");
  EXPECT_EQ(StageOf({"geometry", "unknown"}, "DeviceRadixSortOnesweepKernel"), "map");
  EXPECT_EQ(StageOf({}, "DeviceRadixSortOnesweepKernel"), "voxelize");
  EXPECT_EQ(StageOf({"MakeTiles"}, "DeviceRadixSortOnesweepKernel"), "map");
  EXPECT_EQ(StageOf({}, "InsertBricksKernel<3>"), "map");
  EXPECT_EQ(StageOf({}, "VoxelToPointKernel"), "head");
  EXPECT_EQ(StageOf({}, "VoxelKeysKernel"), "voxelize");
  EXPECT_EQ(StageOf({}, "nvjet_hsh_128x64_64x8"), "matmul");
  EXPECT_EQ(StageOf({}, "NeighbourTableKernel"), "map");
  EXPECT_EQ(StageOf({}, "SortDigitKernel<unsigned long>"), "voxelize");
  EXPECT_EQ(StageOf({}, "SortDigitKernel<unsigned int>"), "map");
  EXPECT_EQ(StageOf({}, "SortTilesByWeightKernel"), "map");
  EXPECT_EQ(StageOf({"GatherGemmScatter", "ScatterAllOffsets"}, "ScatterKernel"), "scatter");
  EXPECT_EQ(StageOf({"GatherGemmScatter", "Multiply"}, "nvjet_hsh_128x64_64x8"), "matmul");
  EXPECT_EQ(StageOf({"PairTables"}, "ScatterPairsKernel"), "map");
  EXPECT_EQ(StageOf({}, "ScatterPairsKernel"), "map");
  EXPECT_EQ(StageOf({}, "SomethingElse"), "other");
  EXPECT_EQ(StageOf({}, ""), "other");
}

TEST(SummarizeTest, NothingIsZero) {
  const ActivitySummary summary = Summarize({}, {});
  EXPECT_EQ(summary.kernels, 0);
  EXPECT_EQ(summary.busy_us, 0);
  EXPECT_EQ(summary.span_us, 0);
}

TEST(SummarizeTest, BusyTimeCountsOverlapsOnce) {
  const ActivitySummary summary = Summarize(
      {
          {.kind = Kind::kKernel, .kernel = "GatherKernel", .begin_ns = 5000, .end_ns = 9000},
          {.kind = Kind::kKernel, .kernel = "GatherKernel", .begin_ns = 1000, .end_ns = 3000},
          {.kind = Kind::kCopyToHost, .begin_ns = 2000, .end_ns = 4000, .bytes = 64},
          {.kind = Kind::kMemset, .ranges = {"Voxelize"}, .begin_ns = 6000, .end_ns = 7000},
          {.kind = Kind::kCopyToDevice, .begin_ns = 0, .end_ns = 500, .bytes = 32},
          {.kind = Kind::kCopyOnDevice, .begin_ns = 9000, .end_ns = 10000, .bytes = 16},
      },
      {});
  EXPECT_EQ(summary.kernels, 2);
  EXPECT_EQ(summary.memsets, 1);
  EXPECT_EQ(summary.copies_to_device, 1);
  EXPECT_EQ(summary.copies_to_host, 1);
  EXPECT_EQ(summary.copies_on_device, 1);
  EXPECT_EQ(summary.bytes_to_device, 32);
  EXPECT_EQ(summary.bytes_to_host, 64);
  EXPECT_DOUBLE_EQ(summary.kernel_us, 6);
  EXPECT_DOUBLE_EQ(summary.copy_us, 3.5);
  EXPECT_DOUBLE_EQ(summary.memset_us, 1);
  EXPECT_DOUBLE_EQ(summary.busy_us, 0.5 + 3 + 5);
  EXPECT_DOUBLE_EQ(summary.span_us, 10);
  EXPECT_THAT(summary.stage_us,
              ElementsAre(Pair("copy", 2.5), Pair("gather", 6), Pair("other", 1), Pair("voxelize", 1)));
}

TEST(SummarizeTest, KernelsAreDemangledAndSortedByTime) {
  // The name means void voxserve::kernels::cuda::GatherKernel<float>(int). The other kernel's name is not mangled; it
  // ran twice.
  const std::string mangled = "_ZN8voxserve7kernels4cuda12GatherKernelIfEEvi";
  const ActivitySummary summary = Summarize({{.kernel = mangled, .begin_ns = 0, .end_ns = 1500},
                                             {.kernel = "nvjet_tst", .begin_ns = 2000, .end_ns = 3000},
                                             {.kernel = "nvjet_tst", .begin_ns = 3000, .end_ns = 4000}},
                                            {});
  ASSERT_EQ(summary.kernel_totals.size(), 2U);
  EXPECT_EQ(summary.kernel_totals[0].name, "nvjet_tst");
  EXPECT_EQ(summary.kernel_totals[0].launches, 2);
  EXPECT_DOUBLE_EQ(summary.kernel_totals[0].us, 2);
  EXPECT_EQ(summary.kernel_totals[1].name, "GatherKernel<float>");
  EXPECT_EQ(summary.kernel_totals[1].stage, "gather");
}

TEST(SummarizeTest, CallsAreCountedByWhatTheyDo) {
  const ActivitySummary summary = Summarize({}, {{"cudaStreamSynchronize_v3020", 1},
                                                 {"cudaMemcpy_v3020", 2},
                                                 {"cuMemcpyHtoD_v2", 3},
                                                 {"cudaMemcpyAsync_ptsz_v7000", 100},
                                                 {"cudaEventQuery_v3020", 4},
                                                 {"cudaLaunchKernel_v7000", 5},
                                                 {"cudaLaunchKernelExC_v11060", 6},
                                                 {"cuLaunchKernelEx", 7},
                                                 {"cudaGraphLaunch_v10000", 8},
                                                 {"cudaMallocAsync_v11020", 9},
                                                 {"cudaMallocFromPoolAsync_v11020", 10},
                                                 {"cudaMallocHost_v3020", 11},
                                                 {"cudaHostAlloc_v3020", 12},
                                                 {"cudaFreeAsync_v11020", 13},
                                                 {"cudaFreeHost_v3020", 100},
                                                 {"cudaStreamWaitEvent_v3020", 100},
                                                 {"cudaEventRecord_v3020", 100}});
  EXPECT_EQ(summary.synchronizations, 1 + 2 + 3);
  EXPECT_EQ(summary.polls, 4);
  EXPECT_EQ(summary.launch_calls, 5 + 6 + 7 + 8);
  EXPECT_EQ(summary.device_allocations, 9 + 10);
  EXPECT_EQ(summary.host_allocations, 11 + 12);
  EXPECT_EQ(summary.device_frees, 13);
  EXPECT_EQ(summary.calls.at("cudaMemcpyAsync"), 100);
}

TEST(ToMarkdownTest, NumbersAreOfOneRun) {
  ActivitySummary summary =
      Summarize({{.kernel = "nvjet_tst", .begin_ns = 0, .end_ns = 20'000}}, {{"cudaLaunchKernel", 30}});
  EXPECT_THAT(ToMarkdown(summary, 10), HasSubstr("| kernels | 0.1 |\n| launch calls | 3 |\n"));
  EXPECT_THAT(ToMarkdown(summary, 10), HasSubstr("| GPU busy | 2.0 us |\n"));
  EXPECT_THAT(ToMarkdown(summary, 10), HasSubstr("| `nvjet_tst` | matmul | 0.1 | 2.0 |\n"));
  summary.dropped_records = 3;
  EXPECT_THAT(ToMarkdown(summary, 10, 0), HasSubstr("LOST RECORDS"));
}

}  // namespace
}  // namespace voxserve::bench::activity_summary_test
