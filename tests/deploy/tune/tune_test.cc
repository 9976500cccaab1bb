// Tests the program voxserve-tune (Run in tune.h) on the CPU with a small model: plan files, choice of scans, errors
// and output.

#include "deploy/tune/tune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "deploy/tune/options.h"
#include "deploy/tune/report.h"
#include "engine/model/model_version.h"
#include "engine/serving/models/device_program.h"
#include "engine/tuner/plan_store.h"
#include "tests/support/model_folder.h"

namespace voxserve::tune::tune_test {
namespace {

namespace fs = std::filesystem;
using offline::kExitFailure;
using offline::kExitInterrupted;
using offline::kExitOk;
using offline::kExitUsage;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using voxserve::support::SmallModel;
using voxserve::support::TemporaryFolder;
using voxserve::support::TestModel;
using voxserve::support::WriteFile;

// Returns a scan file in KITTI's layout: per point float32 x, y, z and intensity.
std::string KittiFile(int num_points) {
  std::string bytes;
  for (int i = 0; i < num_points; ++i) {
    const float point[] = {0.1f * static_cast<float>(i % 32), 0.1f * static_cast<float>(i / 32 % 32),
                           0.1f * static_cast<float>(i % 7), 0.5f};
    bytes.append(reinterpret_cast<const char*>(point), sizeof(point));
  }
  return bytes;
}

class TuneTest : public ::testing::Test {
 protected:
  TuneTest() {
    SmallModel().WriteTo(model_);
    WriteFile(folder_.path() / "scans" / "a.bin", KittiFile(600));
    WriteFile(folder_.path() / "scans" / "b.bin", KittiFile(700));
  }

  int Tune(std::vector<std::string> words) {
    out_.str("");
    err_.str("");
    return tune::Run(words, {.out = &out_,
                             .err = &err_,
                             .is_interrupted = [this] { return num_checks_before_interrupt_-- == 0; },
                             .version = "1.2.3"});
  }
  int TuneOnCpu(std::vector<std::string> words) {
    words.insert(words.begin(), {"--model", model_.string(), "--devices", "cpu", "--threads", "2", "--repeats", "1"});
    return Tune(std::move(words));
  }
  std::string Scan(const std::string& name) const { return (folder_.path() / "scans" / name).string(); }

  // Returns the paths of all files under a folder.
  static std::vector<std::string> FilesIn(const fs::path& folder) {
    std::vector<std::string> files;
    if (!fs::exists(folder)) return files;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) files.push_back(entry.path().string());
    }
    return files;
  }

  TemporaryFolder folder_;
  fs::path model_ = folder_.path() / "models" / "small";
  int num_checks_before_interrupt_ = -1;  // below 0: never
  std::ostringstream out_, err_;
};

TEST_F(TuneTest, WritesAPlanThatTheServerFinds) {
  ASSERT_EQ(TuneOnCpu({(folder_.path() / "scans").string()}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("conv "));
  EXPECT_THAT(out_.str(), HasSubstr("2>4"));
  EXPECT_THAT(out_.str(), HasSubstr("any                        2"));
  EXPECT_THAT(err_.str(), HasSubstr("candidates"));
  const std::vector<std::string> files = FilesIn(model_ / "1" / "plans");
  ASSERT_EQ(files.size(), 1u);
  EXPECT_THAT(out_.str(), HasSubstr("wrote " + files[0]));

  const LoadedModel model = *LoadModelVersion(model_, 1);
  PlanStore store("");
  std::vector<std::string> problems;
  const auto found = store.Find(MakePlanKey(model.graph, model.config, Device(), "1.2.3"), model_ / "1", problems);
  EXPECT_TRUE(problems.empty());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->source, "model");
  EXPECT_EQ(found->plan->buckets.size(), 1u);
  EXPECT_EQ(found->plan->buckets[0].num_scans, 2);
}

TEST_F(TuneTest, WritesToThePlanDir) {
  const fs::path plan_dir = folder_.path() / "plans";
  ASSERT_EQ(TuneOnCpu({"--plan_dir", plan_dir.string(), Scan("a.bin")}), kExitOk) << err_.str();
  EXPECT_EQ(FilesIn(plan_dir).size(), 1u);
  EXPECT_TRUE(FilesIn(model_ / "1" / "plans").empty());
}

TEST_F(TuneTest, AFolderThatTakesNoPlanIsToldBeforeTheSearch) {
  const std::string file = Scan("a.bin");
  EXPECT_EQ(TuneOnCpu({"--plan_dir", file + "/plans", file}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("cannot be written: its folder cannot be created"));
  EXPECT_THAT(err_.str(), Not(HasSubstr("sizes"))) << "the search's first step";
  EXPECT_EQ(out_.str(), "");
}

TEST_F(TuneTest, ADryRunWritesNothing) {
  ASSERT_EQ(TuneOnCpu({"--dry_run", Scan("a.bin")}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), Not(HasSubstr("wrote")));
  EXPECT_TRUE(FilesIn(model_ / "1" / "plans").empty());
}

TEST_F(TuneTest, AnInterruptWritesNothing) {
  const std::string bar = "[..............................]   0%  0:00  ";
  const std::string last = "voxserve-tune: interrupted; nothing was written\n";
  const std::vector<std::string> errors = {last, bar + "reading 1 scan\n" + bar + "sizes\n" + last};
  for (size_t after = 0; after < errors.size(); ++after) {
    num_checks_before_interrupt_ = static_cast<int>(after);
    EXPECT_EQ(TuneOnCpu({Scan("a.bin")}), kExitInterrupted);
    EXPECT_EQ(err_.str(), errors[after]);
  }
  EXPECT_TRUE(FilesIn(model_ / "1" / "plans").empty());
}

TEST_F(TuneTest, TakesTheNewestVersionOrTheOneNamed) {
  SmallModel().WriteTo(model_, 3);
  ASSERT_EQ(TuneOnCpu({Scan("a.bin")}), kExitOk);
  EXPECT_EQ(FilesIn(model_ / "3" / "plans").size(), 1u);
  ASSERT_EQ(Tune({"--model", model_.string() + "/:1", "--devices", "cpu", "--repeats", "1", Scan("a.bin")}), kExitOk)
      << err_.str();
  EXPECT_EQ(FilesIn(model_ / "1" / "plans").size(), 1u);
  EXPECT_EQ(Tune({"--model", model_.string() + ":2", Scan("a.bin")}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("has no version 2; it has 1, 3"));
}

TEST_F(TuneTest, ScansThatCannotBeReadAreLeftOut) {
  WriteFile(folder_.path() / "scans" / "bad.pcd", "no point cloud");
  ASSERT_EQ(TuneOnCpu({(folder_.path() / "scans").string()}), kExitOk);
  EXPECT_THAT(err_.str(), HasSubstr("left out: " + Scan("bad.pcd")));
  EXPECT_EQ(TuneOnCpu({Scan("bad.pcd")}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("none of 1 scans can be used"));
}

TEST_F(TuneTest, ScansThatTheModelRefusesAreLeftOut) {
  const std::string fields = "x:f32,y:f32,nothing:f32,intensity:f32";
  EXPECT_EQ(TuneOnCpu({"--fields", fields, Scan("a.bin")}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("none of the 1 scans can be run; " + Scan("a.bin") + " is left out: "));
}

TEST_F(TuneTest, ReadsAFieldOfAnotherName) {
  const std::string fields = "x:f32,y:f32,z:f32,reflectivity:f32";
  ASSERT_EQ(TuneOnCpu({"--fields", fields, "--fields", "intensity=reflectivity", Scan("a.bin")}), kExitOk)
      << err_.str();
  EXPECT_EQ(TuneOnCpu({"--fields", "intensity=reflectivity", Scan("a.bin")}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("intensity=reflectivity, but the points have x, y, z, intensity"));
}

TEST_F(TuneTest, ABrokenModelListsItsProblems) {
  TestModel model = SmallModel();
  model.weights.erase("conv.bias");
  model.weights.erase("norm.bias");
  model.WriteTo(model_);
  EXPECT_EQ(TuneOnCpu({Scan("a.bin")}), kExitFailure);
  EXPECT_THAT(err_.str(), StartsWith("voxserve-tune: the model has 2 problems:\n  "));
  EXPECT_THAT(err_.str(), HasSubstr("conv.bias"));
  EXPECT_THAT(err_.str(), HasSubstr("norm.bias"));
}

TEST_F(TuneTest, HostileFilesAreRefusedAndNothingIsWritten) {
  const fs::path graph = model_ / "1/model.textproto";
  const fs::path config = model_ / "config.textproto";
  const auto expect_refused = [&](const std::string& why) {
    EXPECT_EQ(TuneOnCpu({Scan("a.bin")}), 1) << why;
    EXPECT_THAT(err_.str(), HasSubstr(why));
    fs::remove(config);
    fs::remove_all(model_ / "1");
    SmallModel().WriteTo(model_);
  };
  std::string deep;
  for (int i = 0; i < 300'000; ++i) deep += "nodes { ";
  WriteFile(graph, deep);
  expect_refused("recursion limit of 32");
  WriteFile(config, deep);
  expect_refused("recursion limit of 32");
  fs::resize_file(graph, uint64_t{1} << 40);
  expect_refused("model.textproto: cannot be read (it has 1099511627776 bytes; at most 8388608 are read)");
  fs::remove(graph);
  ASSERT_EQ(mkfifo(graph.c_str(), 0600), 0);
  expect_refused("model.textproto: cannot be read (no regular file)");
  std::string nodes;
  for (int i = 0; i < 1'000'000; ++i) nodes += "nodes {}";
  WriteFile(graph, nodes);
  expect_refused("has 1000000 nodes; at most 10000 are possible");
  std::string unknown;
  for (int i = 0; i < 1000; ++i) unknown += "q: 1\n";
  WriteFile(config, unknown);
  expect_refused("the model has 1000 problems:");
  EXPECT_THAT(err_.str(), HasSubstr("  and 900 more\n"));
  EXPECT_THAT(FilesIn(model_ / "1/plans"), ::testing::IsEmpty());
}

TEST_F(TuneTest, WhatIsNotThereIsNamed) {
  EXPECT_EQ(Tune({"--model", "no/such/model", Scan("a.bin")}), kExitFailure);
  EXPECT_EQ(err_.str(), "voxserve-tune: no/such/model: no such folder\n");
  EXPECT_EQ(TuneOnCpu({Scan("c.bin")}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("c.bin: no such file or folder"));
  EXPECT_EQ(Tune({"--model", (folder_.path() / "scans").string(), Scan("a.bin")}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("is not a model's folder"));
  EXPECT_EQ(Tune({"--model", model_.string(), "--devices", "gpu", Scan("a.bin")}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("device \"gpu\" is neither cpu nor cuda:<number>"));
}

TEST_F(TuneTest, SaysWhatIsWrongWithTheCommandLine) {
  EXPECT_EQ(Tune({Scan("a.bin")}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("--model is missing"));
  EXPECT_EQ(Tune({"--model", "m"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("no scan given"));
  EXPECT_EQ(Tune({"--model", "m:0", "s.bin"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("--model is 'm:0'"));
  EXPECT_EQ(Tune({"--model", "m:+1", "s.bin"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("--model is 'm:+1'"));
  EXPECT_EQ(Tune({"--model", "m", "--time_limit", "0s", "s.bin"}), kExitUsage);
  EXPECT_EQ(Tune({"--model", "m", "--fields", "x", "s.bin"}), kExitUsage);
  EXPECT_EQ(Tune({"--modle", "m", "s.bin"}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("unknown flag --modle (did you mean --model?); see voxserve-tune --help"));
  EXPECT_EQ(Tune({"--model", model_.string(), model_.string()}), kExitUsage);
  EXPECT_THAT(err_.str(), HasSubstr("the folder has no scans"));
}

TEST_F(TuneTest, ExplainsItself) {
  EXPECT_EQ(Tune({"--help"}), kExitOk);
  EXPECT_THAT(out_.str(), StartsWith("voxserve-tune: searches"));
  for (const char* flag : {"--model", "--plan_dir", "--devices", "--max_scans", "--repeats", "--time_limit",
                           "--dry_run", "--fields", "--allow_nondeterministic", "--threads"}) {
    EXPECT_THAT(out_.str(), HasSubstr(flag));
  }
  EXPECT_EQ(Tune({"--version"}), kExitOk);
  EXPECT_EQ(out_.str(), "voxserve-tune 1.2.3\n");
}

TEST(TuneOptions, AFolderMayHaveColons) {
  const absl::StatusOr<Options> options = ParseOptions({"--model", "a:b/c", "s.bin", "--max_scans=7"});
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->model.folder, "a:b/c");
  EXPECT_EQ(options->model.version, 0);
  EXPECT_EQ(options->max_scans, 7);
}

TEST(TuneReport, ShowsEveryBucket) {
  SearchResult result{.buckets = {{.bucket = {.max_voxels = 65536},
                                   .num_scans = 3,
                                   .default_time = absl::Milliseconds(3),
                                   .tuned_time = absl::Milliseconds(2)},
                                  {.bucket = {.min_voxels = 65536}, .num_scans = 1}},
                      .convs = {{{.node = "stem.0",
                                  .in_channels = 4,
                                  .out_channels = 32,
                                  .default_time = absl::Microseconds(50),
                                  .tuned_time = absl::Microseconds(40),
                                  .plan = {.map_search = kernels::MapSearch::kGrid, .block = {.rows = 128}}}},
                                {{.node = "stem.0", .in_channels = 4, .out_channels = 32}}},
                      .search_time = absl::Seconds(12),
                      .num_runs = 1234,
                      .notes = std::vector<std::string>(25, "a note")};
  const std::string text = FormatResult(result, "NVIDIA H200 (cuda:0)");
  EXPECT_THAT(text,
              HasSubstr("  stem.0           4>32       50.0       40.0   1.25x  fetch_on_demand 128 rows GRID\n"));
  EXPECT_THAT(text, HasSubstr("  below 65,536               3       3.000       2.000   1.50x\n"));
  EXPECT_THAT(text, HasSubstr("  from 65,536                1       0.000       0.000       -\n"));
  EXPECT_THAT(text, HasSubstr("1,234 runs in 12.00 s"));
  EXPECT_THAT(text, HasSubstr("and 5 more notes"));
}

}  // namespace
}  // namespace voxserve::tune::tune_test
