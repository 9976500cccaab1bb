// Tests that tuned plans are written to text and read back unchanged, and the problems that broken texts have.

#include "engine/tuner/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/engine/tuner/example_plan.h"
#include "tests/support/model_folder.h"

namespace voxserve::plan_file_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using voxserve::support::TemporaryFolder;
using voxserve::support::WriteFile;

TunedPlan ParseValid(const std::string& text) {
  const absl::StatusOr<TunedPlan> plan = ParsePlan(text, "plan");
  EXPECT_TRUE(plan.ok()) << plan.status() << "\n" << text;
  return plan.value_or(TunedPlan());
}

Problems ProblemsIn(const std::string& text) { return ProblemsOf(ParsePlan(text, "plan").status()); }

// Returns the text of a plan that has an empty key and one bucket with these fields.
std::string Bucket(const std::string& fields) { return "key {} buckets { " + fields + " }"; }

void ExpectRoundTrip(const TunedPlan& plan) {
  const std::string text = PlanText(plan);
  const TunedPlan read = ParseValid(text);
  EXPECT_TRUE(IsEqual(read, plan)) << text;
  EXPECT_EQ(PlanText(read), text);
}

TEST(PlanTextTest, SaysWhatItIsForAndHasALineForEachConvolution) {
  EXPECT_EQ(PlanText(ExamplePlan()), R"(# A tuned plan (voxserve.model.v1.Plan), written by voxserve 0.1.0.
# For model 0123456789abcdef in float16 on NVIDIA H200 (9.0, CUDA 13.0).
# It is used only where the key below is true; elsewhere the default plan is used.

key {
  model_digest: "0123456789abcdef777777777777777777777777777777777777777777777777"
  device: "NVIDIA H200"
  compute_capability: "9.0"
  cuda_version: "13.0"
  engine_version: "0.1.0"
  dtype: "float16"
}
buckets {
  max_voxels: 65536
  num_scans: 12
  default_ms: 4.321
  tuned_ms: 3.21
  fallback { map_search: MAP_SEARCH_HASH dataflow: DATAFLOW_IMPLICIT_GEMM }
  convs { node: "down" map_search: MAP_SEARCH_HASH dataflow: DATAFLOW_GATHER_GEMM_SCATTER grouping: GROUPING_SEPARATE epsilon: 0.8 }
  convs { node: "last" map_search: MAP_SEARCH_HASH dataflow: DATAFLOW_GATHER_GEMM_SCATTER grouping: GROUPING_FIXED epsilon: 0.8 }
  convs { node: "stem.0" map_search: MAP_SEARCH_GRID dataflow: DATAFLOW_FETCH_ON_DEMAND block_rows: 64 }
  convs { node: "stem.1" map_search: MAP_SEARCH_HASH dataflow: DATAFLOW_GATHER_GEMM_SCATTER grouping: GROUPING_ADAPTIVE epsilon: 0.1 bmm_max_rows: 40000 }
  convs { node: "tiles" map_search: MAP_SEARCH_HASH dataflow: DATAFLOW_IMPLICIT_GEMM block_rows: 128 block_columns: 96 split_k: 2 uses_mma_sync: true }
  convs { node: "up" map_search: MAP_SEARCH_MERGE dataflow: DATAFLOW_GATHER_GEMM_SCATTER grouping: GROUPING_SYMMETRIC epsilon: 0.8 }
}
buckets {
  min_voxels: 65536
  fallback { map_search: MAP_SEARCH_HASH dataflow: DATAFLOW_IMPLICIT_GEMM }
}
)");
}

TEST(PlanTextTest, ComesBackEqual) { ExpectRoundTrip(ExamplePlan()); }

TEST(PlanTextTest, ExtremesComeBackEqual) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const double epsilon : {0.0, 1.0, 0.1 + 0.2, std::nextafter(1.0, 0.0), std::numeric_limits<double>::min(),
                               std::numeric_limits<double>::denorm_min()}) {
    for (const int64_t bmm_max_rows : {int64_t{0}, int64_t{1}, kMost - 1, kMost}) {
      for (const ConvDataflow* const dataflow : Dataflows()) {
        for (const char* const cuda_version : {"", "13.0"}) {
          TunedPlan plan = ExamplePlan();
          plan.key.cuda_version = cuda_version;
          const ConvPlan conv = {
              .map_search = kernels::MapSearch::kMerge,
              .dataflow = dataflow->id(),
              .block = {.rows = 1 << 20, .columns = 1 << 20, .split_k = 1 << 20, .uses_mma_sync = true},
              .grouping = {.grouping = kernels::Grouping::kFixed, .epsilon = epsilon, .bmm_max_rows = bmm_max_rows}};
          plan.buckets[1].bucket.plan.fallback = conv;
          plan.buckets[1].bucket.plan.by_node = {{"a", conv}};
          ExpectRoundTrip(plan);
        }
      }
    }
  }
  TunedPlan plan = ExamplePlan();
  plan.buckets[1].num_scans = std::numeric_limits<int>::max();
  plan.buckets[1].default_time = absl::Hours(1) + absl::Nanoseconds(1) / 4;
  plan.buckets[1].tuned_time = absl::Nanoseconds(1) / 4;
  plan.buckets[1].bucket.min_voxels = kMost - 1;
  ExpectRoundTrip(plan);
}

TEST(PlanTextTest, TimesComeBackEqual) {
  TunedPlan plan = ExamplePlan();
  for (int64_t i = 1; i < 5000; ++i) {
    plan.buckets[0].default_time = absl::Nanoseconds(1) / 4 * (i * i * 7919);
    ASSERT_EQ(ParseValid(PlanText(plan)).buckets[0].default_time, plan.buckets[0].default_time) << i;
  }
}

TEST(PlanTextTest, OddNamesComeBackEqualAndStayInTheirComment) {
  TunedPlan plan = ExamplePlan();
  plan.key.device = "GPU\n\"7\" {}\t\\ \xC3\xA9";
  plan.key.dtype = "\n}";
  plan.key.engine_version = "#\r\n";
  plan.buckets[0].bucket.plan.by_node["a \"b\"\n\xE2\x98\x83 # }"] = {};
  ExpectRoundTrip(plan);
}

TEST(PlanTextTest, DoesNotDependOnTheOrderOfInsertion) {
  TunedPlan forth = ExamplePlan(), back = ExamplePlan();
  for (int i = 0; i < 100; ++i) {
    forth.buckets[0].bucket.plan.by_node[std::to_string(i)].block.rows = i;
    back.buckets[0].bucket.plan.by_node[std::to_string(99 - i)].block.rows = 99 - i;
  }
  EXPECT_EQ(PlanText(forth), PlanText(back));
}

TEST(ParsePlanTest, WhatIsAbsentIsTheDevicesDefault) {
  const std::string bucket = R"( buckets { convs { node: "a" } convs { node: "b" epsilon: 0 block_rows: 32 } })";
  const auto ofKey = [&](const std::string& key) {
    return ParseValid("key { " + key + " }" + bucket).buckets[0].bucket;
  };
  const PlanTable::Bucket cpu = ofKey(R"(device: "CPU" dtype: "float32")");
  EXPECT_EQ(cpu.plan.fallback, ConvPlan());
  EXPECT_EQ(cpu.plan.ForNode("a"), ConvPlan());
  EXPECT_EQ(cpu.min_voxels, 0);
  EXPECT_EQ(cpu.max_voxels, PlanTable::kNoLimit);
  for (const char* const dtype : {"float16", "bfloat16"}) {
    const PlanTable::Bucket gpu = ofKey(std::string(R"(cuda_version: "13.0" dtype: ")") + dtype + "\"");
    EXPECT_EQ(gpu.plan.fallback, kDefaultCudaConvPlan) << dtype;
    EXPECT_EQ(gpu.plan.ForNode("a"), kDefaultCudaConvPlan) << dtype;
    EXPECT_EQ(gpu.plan.ForNode("b").grouping.epsilon, 0);
    EXPECT_EQ(gpu.plan.ForNode("b").block.rows, 32);
    EXPECT_EQ(gpu.plan.ForNode("b").dataflow, Dataflow::kImplicitGemm);
  }
  EXPECT_EQ(ofKey(R"(cuda_version: "13.0" dtype: "float32")").plan.fallback,
            DefaultCudaConvPlan(DType::kFloat32, false));
  EXPECT_EQ(ofKey(R"(cuda_version: "13.0" dtype: "tf32")").plan.fallback, DefaultCudaConvPlan(DType::kFloat32, true));
}

TEST(ParsePlanTest, OnePartOrNoneIsNoSplit) {
  const auto block_of = [](const std::string& fields) {
    return ParseValid("key { device: \"x\" } buckets { convs { node: \"a\" " + fields + " } }")
        .buckets[0]
        .bucket.plan.ForNode("a")
        .block;
  };
  EXPECT_EQ(block_of("block_rows: 64 split_k: 1"), (kernels::ConvBlock{.rows = 64}));
  EXPECT_EQ(block_of("block_rows: 64 block_columns: 96"),
            (kernels::ConvBlock{.rows = 64, .columns = 96, .split_k = 1}));
  EXPECT_EQ(block_of("block_rows: 64 block_columns: 96 split_k: 1"), block_of("block_rows: 64 block_columns: 96"));
  EXPECT_EQ(block_of("block_rows: 64 block_columns: 96 split_k: 2").split_k, 2);
  for (const char* const fields : {"block_columns: 96", "split_k: 2", "uses_mma_sync: true"}) {
    EXPECT_THAT(ProblemsIn(std::string("key { device: \"x\" } buckets { convs { node: \"a\" ") + fields + " } }"),
                ElementsAre(HasSubstr("block_columns, split_k and uses_mma_sync need block_rows")))
        << fields;
  }
}

TEST(ParsePlanTest, TellsEveryProblem) {
  EXPECT_THAT(
      ProblemsIn(R"(buckets { min_voxels: 5 max_voxels: 5 num_scans: 4294967295 default_ms: -1 tuned_ms: nan
                              fallback { node: "x" grouping: 9 }
                              convs { node: "a" map_search: 4 dataflow: 7 grouping: -1 epsilon: 1.5 }
                              convs { node: "a" block_rows: 1048577 block_columns: 1048577 split_k: 4294967295 }
                              convs { bmm_max_rows: 9223372036854775808 } })"),
      ElementsAre(
          "plan: has no key", "plan: buckets[0]: is empty: min_voxels is 5 and max_voxels is 5",
          "plan: buckets[0]: num_scans is 4294967295; at most 2147483647 is possible",
          "plan: buckets[0]: default_ms is -1; it must be 0 to 86400000",
          "plan: buckets[0]: tuned_ms is nan; it must be 0 to 86400000", "plan: buckets[0]: fallback has node \"x\"",
          "plan: buckets[0], fallback: grouping 9 is unknown", "plan: buckets[0], node \"a\": map_search 4 is unknown",
          "plan: buckets[0], node \"a\": dataflow 7 is unknown", "plan: buckets[0], node \"a\": grouping -1 is unknown",
          "plan: buckets[0], node \"a\": epsilon is 1.5; it must be 0 to 1",
          "plan: buckets[0], node \"a\": block_rows is 1048577; at most 1048576 is possible",
          "plan: buckets[0], node \"a\": block_columns is 1048577; at most 1048576 is possible",
          "plan: buckets[0], node \"a\": split_k is 4294967295; at most 1048576 is possible",
          "plan: buckets[0], node \"a\": appears twice", "plan: buckets[0]: convs[2] has no node",
          "plan: buckets[0], node \"\": bmm_max_rows is 9223372036854775808; at most 9223372036854775807 is "
          "possible"));
}

TEST(ParsePlanTest, EpsilonIsAShare) {
  for (const char* const wrong : {"nan", "-nan", "inf", "-inf", "-1e-300", "1.0000001", "1e300"}) {
    EXPECT_THAT(ProblemsIn(Bucket(std::string("convs { node: \"a\" epsilon: ") + wrong + " }")),
                ElementsAre(HasSubstr("it must be 0 to 1")))
        << wrong;
  }
  for (const char* const right : {"0", "-0.0", "1", "5e-324"}) {
    EXPECT_THAT(ProblemsIn(Bucket(std::string("convs { node: \"a\" epsilon: ") + right + " }")), IsEmpty()) << right;
  }
}

TEST(ParsePlanTest, TimesAreFiniteAndNotNegative) {
  for (const char* const wrong : {"nan", "inf", "-inf", "-0.001", "1e300"}) {
    EXPECT_THAT(ProblemsIn(Bucket(std::string("tuned_ms: ") + wrong)), ElementsAre(HasSubstr("tuned_ms is "))) << wrong;
  }
}

TEST(ParsePlanTest, BucketsAscendWithoutOverlap) {
  const auto problems = [](const std::string& first, const std::string& second) {
    return ProblemsIn("key {} buckets { " + first + " } buckets { " + second + " }");
  };
  EXPECT_THAT(problems("max_voxels: 10", "min_voxels: 10"), IsEmpty());
  EXPECT_THAT(problems("max_voxels: 10", "min_voxels: 20"), IsEmpty());
  EXPECT_THAT(problems("max_voxels: 10", "min_voxels: 9"),
              ElementsAre("plan: buckets[1]: begins at 9 voxels, but the one before it ends at 10; buckets must ascend "
                          "and not overlap"));
  EXPECT_THAT(problems("min_voxels: 10 max_voxels: 20", "max_voxels: 10"),
              ElementsAre(HasSubstr("buckets[1]: begins at 0 voxels, but the one before it ends at 20")));
  EXPECT_THAT(problems("min_voxels: 10", "min_voxels: 20"),
              ElementsAre(HasSubstr("buckets[1]: begins at 20 voxels, but the one before it never ends")));
  EXPECT_THAT(problems("max_voxels: 18446744073709551615", "min_voxels: 18446744073709551615"),
              ElementsAre(HasSubstr("max_voxels is 18446744073709551615; at most 9223372036854775807 is possible"),
                          HasSubstr("min_voxels is 18446744073709551615; at most 9223372036854775807 is possible"),
                          HasSubstr("is empty")));
}

TEST(ParsePlanTest, SyntaxErrorsNameTheirPlace) {
  EXPECT_THAT(ProblemsIn("key {}\nbuckets {\n  convs { dataflow: DATAFLOW_MAGIC }\n}"),
              ElementsAre(AllOf(StartsWith("plan:3:"), HasSubstr("DATAFLOW_MAGIC"))));
  for (const char* const field : {"block_rows: -1", "block_columns: -1", "split_k: 0.5", "uses_mma_sync: 2"}) {
    EXPECT_THAT(ProblemsIn(Bucket(std::string("convs { node: \"a\" ") + field + " }")),
                ElementsAre(StartsWith("plan:1:")))
        << field;
  }
  EXPECT_THAT(ProblemsIn(Bucket("convs { node: \"a\" colour: 1 }")), ElementsAre(HasSubstr("colour")));
}

TEST(ParsePlanTest, AnEmptyFileIsNoPlan) {
  for (const char* const text : {"", "\n", "# only a comment\n"}) {
    EXPECT_THAT(ProblemsIn(text), ElementsAre("plan: has no key", "plan: has no buckets")) << text;
  }
}

// A file that is cut between two buckets is a valid plan with fewer buckets. If it is cut anywhere else, it is refused.
TEST(ParsePlanTest, ATruncatedFileIsRefused) {
  const std::string text = PlanText(ExamplePlan());
  const size_t between = text.rfind("buckets {");
  for (size_t size = 0; size < text.size() - 1; ++size) {
    const absl::StatusOr<TunedPlan> plan = ParsePlan(text.substr(0, size), "plan");
    ASSERT_EQ(plan.ok(), size == between || size + 1 == between) << size;
    if (!plan.ok()) continue;
    EXPECT_EQ(plan->buckets.size(), 1U);
  }
}

TEST(ParsePlanTest, EveryDamagedByteIsReadOrRefused) {
  const std::string text = PlanText(ExamplePlan());
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char byte : {'\0', '\x80', '}', '"', '9'}) {
      std::string damaged = text;
      damaged[i] = byte;
      const absl::StatusOr<TunedPlan> plan = ParsePlan(damaged, "plan");
      if (plan.ok()) ExpectRoundTrip(*plan);
    }
  }
}

TEST(ParsePlanTest, BinaryIsRefusedWithOneProblem) {
  std::string binary;
  for (int i = 0; i < 100000; ++i) binary.push_back(static_cast<char>(i * 7919 >> 3));
  EXPECT_THAT(ProblemsIn(binary), ElementsAre("plan: is not text, byte 0 is a control character"));
  EXPECT_THAT(ProblemsIn("key {}" + std::string(5, '\0')), ElementsAre(HasSubstr("byte 6 is a control character")));
}

TEST(ReadPlanTest, ReadsWhatWasWritten) {
  const TemporaryFolder folder;
  WriteFile(folder.path() / "p.textproto", PlanText(ExamplePlan()));
  const absl::StatusOr<TunedPlan> plan = ReadPlan(folder.path() / "p.textproto");
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(IsEqual(*plan, ExamplePlan()));
}

TEST(ReadPlanTest, AMissingFileIsNotFound) {
  const TemporaryFolder folder;
  WriteFile(folder.path() / "file", "");
  EXPECT_EQ(ReadPlan(folder.path() / "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadPlan(folder.path() / "none/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadPlan(folder.path() / "file/none").status().code(), absl::StatusCode::kNotFound);
}

TEST(ReadPlanTest, WhatIsNoFileIsRefused) {
  const TemporaryFolder folder;
  fs::create_directories(folder.path() / "folder");
  fs::create_symlink("loop", folder.path() / "loop");
  ASSERT_EQ(mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  for (const char* const name : {"folder", "loop", "pipe"}) {
    const absl::Status status = ReadPlan(folder.path() / name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(ProblemsOf(status), ElementsAre(StartsWith(std::string(name) + ": cannot be read"))) << name;
  }
}

TEST(ReadPlanTest, AFileWithoutPermissionIsRefused) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const TemporaryFolder folder;
  WriteFile(folder.path() / "p", PlanText(ExamplePlan()));
  fs::permissions(folder.path() / "p", fs::perms::none);
  EXPECT_THAT(ProblemsOf(ReadPlan(folder.path() / "p").status()), ElementsAre("p: cannot be read (Permission denied)"));
}

TEST(ReadPlanTest, AHugeFileIsRefused) {
  const TemporaryFolder folder;
  WriteFile(folder.path() / "p", PlanText(ExamplePlan()));
  fs::resize_file(folder.path() / "p", uint64_t{1} << 40);  // sparse
  EXPECT_THAT(ProblemsOf(ReadPlan(folder.path() / "p").status()),
              ElementsAre("p: cannot be read (it has 1099511627776 bytes; at most 4194304 are read)"));
  EXPECT_THAT(ProblemsIn(std::string(kMaxPlanFileBytes + 1, '\n')), ElementsAre("plan: is larger than 4194304 bytes"));
}

TEST(PlanProblemsTest, OnAGpu) {
  Program program;
  program.convs.resize(2);
  const ServedDataflow grouped{.dataflow = Dataflow::kGatherGemmScatter};
  const kernels::ConvBlock small{.rows = 64, .columns = 32, .split_k = 1};
  const kernels::ConvBlock large{.rows = 128, .columns = 96, .split_k = 2, .uses_mma_sync = true};
  program.convs[0] = {
      .node = "narrow", .is_on_cuda = true, .served = {grouped, {Dataflow::kImplicitGemm, {{small, large}}}}};
  program.convs[1] = {.node = "wide", .is_on_cuda = true, .served = {grouped}};
  TunedPlan plan = ExamplePlan();
  plan.buckets[0].bucket.plan.by_node = {{"narrow", {.dataflow = Dataflow::kImplicitGemm, .block = large}},
                                         {"wide", {.dataflow = Dataflow::kGatherGemmScatter}}};
  plan.buckets[1].bucket.plan.fallback = {.dataflow = Dataflow::kImplicitGemm, .block = {.rows = 48}};
  EXPECT_THAT(PlanProblems(plan, program), IsEmpty());
  ConvPlan& narrow = plan.buckets[0].bucket.plan.by_node["narrow"];
  narrow.block = {};
  EXPECT_THAT(PlanProblems(plan, program), IsEmpty());

  narrow.block = small;
  for (const auto& spoil : std::vector<void (*)(kernels::ConvBlock&)>{
           [](auto& block) { block.rows = 128; }, [](auto& block) { block.columns = 0; },
           [](auto& block) { block.split_k = 0; }, [](auto& block) { block.uses_mma_sync = true; }}) {
    narrow.block = small;
    spoil(narrow.block);
    EXPECT_THAT(PlanProblems(plan, program), ElementsAre(HasSubstr("is not supported here"))) << Describe(narrow.block);
  }

  narrow.block = {.rows = 48, .columns = 32, .split_k = 4};
  plan.buckets[0].bucket.plan.by_node["wide"] = {.dataflow = Dataflow::kImplicitGemm};
  plan.buckets[1].bucket.plan.by_node["gone"] = {};
  plan.buckets[1].bucket.plan.by_node["wide"] = {.dataflow = Dataflow::kGatherGemmScatter, .block = {.columns = 32}};
  EXPECT_THAT(PlanProblems(plan, program),
              ElementsAre("buckets[0], node \"narrow\": a block of 48 x 32, split 4 is not supported here; possible "
                          "are the default, 64 x 32, 128 x 96 by warps, split 2",
                          "buckets[0], node \"wide\": dataflow IMPLICIT_GEMM is not supported here",
                          "buckets[1], node \"gone\": is not a convolution of the model",
                          "buckets[1], node \"wide\": a block of 0 x 32 is not supported here; only the "
                          "rows of a block can be chosen"));
}

TEST(PlanProblemsTest, OnACpu) {
  Program program;
  program.convs.resize(1);
  program.convs[0] = {.node = "a", .served = {{.dataflow = Dataflow::kFetchOnDemand}}};
  TunedPlan plan = ExamplePlan();
  plan.buckets.resize(1);
  plan.buckets[0].bucket.plan = {.fallback = {}, .by_node = {{"a", {.block = {.rows = 256}}}}};
  EXPECT_THAT(PlanProblems(plan, program), IsEmpty());
  plan.buckets[0].bucket.plan.by_node["a"].block.columns = 64;
  EXPECT_THAT(PlanProblems(plan, program),
              ElementsAre("buckets[0], node \"a\": a block of 256 x 64 is not supported here; only the rows of a "
                          "block can be chosen"));
  plan.buckets[0].bucket.plan = {.fallback = kDefaultCudaConvPlan, .by_node = {{"a", kDefaultCudaConvPlan}}};
  EXPECT_THAT(PlanProblems(plan, program),
              ElementsAre("buckets[0], fallback: dataflow IMPLICIT_GEMM is not supported on a CPU",
                          "buckets[0], node \"a\": dataflow IMPLICIT_GEMM is not supported on a CPU"));
}

}  // namespace
}  // namespace voxserve::plan_file_test
