// Tests the program voxserve-calibrate (Run in calibrate.h) with a small model: the version that it writes, the choice
// of scans and layers, and every refusal.

#include "deploy/calibrate/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "engine/model/model_version.h"
#include "tests/support/model_folder.h"

namespace voxserve::calibrate::calibrate_test {
namespace {

namespace fs = std::filesystem;
using offline::kExitFailure;
using offline::kExitInterrupted;
using offline::kExitOk;
using offline::kExitUsage;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using voxserve::support::FilledTensor;
using voxserve::support::FloatTensor;
using voxserve::support::SmallModel;
using voxserve::support::TemporaryFolder;
using voxserve::support::TestModel;
using voxserve::support::WriteFile;

// Returns a scan file in KITTI's layout: per point float32 x, y, z and intensity.
std::string KittiFile(int num_points, float intensity = 0.5f, float first_x = 0) {
  std::string bytes;
  for (int i = 0; i < num_points; ++i) {
    const float point[] = {first_x + 0.1f * static_cast<float>(i % 37), 0.1f * static_cast<float>(i / 37 % 31),
                           0.1f * static_cast<float>(i % 7), intensity * static_cast<float>(i % 5)};
    bytes.append(reinterpret_cast<const char*>(point), sizeof(point));
  }
  return bytes;
}

// The small model, with weights of both signs, and a layer more between the first and the last.
TestModel Model() {
  TestModel model = SmallModel();
  model.config = "classes { id: 1 name: \"car\" color: \"#0000ff\" } max_points: 5000 version_policy { latest: 5 }";
  for (auto& [name, tensor] : model.weights) {
    if (name.find("running") != std::string::npos) continue;
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(7 * i + name.size()));
    tensor = FloatTensor(tensor.shape, values);
  }
  return model;
}

class CalibrateTest : public ::testing::Test {
 protected:
  CalibrateTest() {
    Model().WriteTo(model_);
    for (int i = 0; i < 5; ++i) {
      WriteFile(ScanPath(std::string(1, static_cast<char>('a' + i)) + ".bin"), KittiFile(600 + 50 * i));
    }
  }

  int Run(std::vector<std::string> words) {
    out_.str("");
    err_.str("");
    return calibrate::Run(words, {.out = &out_,
                                  .err = &err_,
                                  .is_interrupted = [this] { return is_interrupted_ && is_interrupted_(); },
                                  .version = "1.2.3"});
  }
  int Calibrate(std::vector<std::string> words) {
    words.insert(words.begin(), {"--model", model_.string() + ":1", "--output", Output().string(), "--threads", "2"});
    return Run(std::move(words));
  }
  // Calibrates with a target that the small model, whose classes are close together, reaches in 8 bits.
  int CalibrateLoosely(std::vector<std::string> words) {
    words.insert(words.begin(), {"--agreement", "0.5"});
    return Calibrate(std::move(words));
  }

  fs::path Output() const { return model_ / "2"; }
  fs::path ScanPath(const std::string& name) const { return folder_.path() / "scans" / name; }
  std::string Scan(const std::string& name) const { return ScanPath(name).string(); }
  std::string Scans() const { return (folder_.path() / "scans").string(); }

  // Returns the names of the files and folders in a folder.
  static std::vector<std::string> NamesIn(const fs::path& folder) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
    return names;
  }
  // Expects that nothing is beside the float version: no output, no temporary folder.
  void ExpectNothingWritten() const { EXPECT_THAT(NamesIn(model_), UnorderedElementsAre("1", "config.textproto")); }
  void ExpectRefused(const std::vector<std::string>& words, const std::string& why, int exit_code = kExitFailure) {
    EXPECT_EQ(Calibrate(words), exit_code) << why;
    EXPECT_THAT(err_.str(), HasSubstr(why));
    ExpectNothingWritten();
  }

  TemporaryFolder folder_;
  fs::path model_ = folder_.path() / "models" / "small";
  std::function<bool()> is_interrupted_;
  std::ostringstream out_, err_;
};

TEST_F(CalibrateTest, WritesAVersionInEightBitsBesideTheFloatVersion) {
  ASSERT_EQ(CalibrateLoosely({Scans()}), kExitOk) << err_.str();
  const absl::StatusOr<LoadedModel> made = LoadModelVersion(model_, 2), from = LoadModelVersion(model_, 1);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE(from.ok()) << from.status();
  EXPECT_EQ(made->config.precision, ModelConfig::Precision::kInt8);
  EXPECT_THAT(made->config.float_nodes, ElementsAre("conv", "head"));
  EXPECT_EQ(made->config.max_points, 5000);
  EXPECT_EQ(made->config.classes[1].name, "car");
  EXPECT_EQ(from->config.precision, ModelConfig::Precision::kFloat16) << "the float version is served as before";
  std::vector<std::string> scaled;
  for (const GraphNode& node : made->graph.nodes) {
    if (node.scale > 0) scaled.push_back(node.name);
  }
  EXPECT_THAT(scaled, ElementsAre("voxels", "conv", "relu", "down", "sum"));
  EXPECT_EQ(std::get<LinearOp>(made->graph.nodes[8].op).weight->values,
            std::get<LinearOp>(from->graph.nodes[8].op).weight->values);

  EXPECT_THAT(NamesIn(Output()), UnorderedElementsAre("model.textproto", "weights.safetensors", "config.textproto"));
  EXPECT_THAT(out_.str(), HasSubstr("float: first"));
  EXPECT_THAT(out_.str(), HasSubstr("float: last"));
  EXPECT_THAT(out_.str(), HasSubstr("2 of 4 layers multiply in 8 bits. As in float are "));
  EXPECT_THAT(out_.str(), HasSubstr("labels in 1 scan"));
  EXPECT_THAT(out_.str(), HasSubstr("wrote " + Output().string()));
  EXPECT_THAT(err_.str(), HasSubstr("reading 5 scans"));
  EXPECT_THAT(err_.str(), HasSubstr("values of 4 scans"));
  EXPECT_THAT(err_.str(), HasSubstr("what each layer costs"));
  EXPECT_THAT(err_.str(), Not(HasSubstr("warning")));
}

TEST_F(CalibrateTest, LayersNeedNotBeMeasured) {
  ASSERT_EQ(CalibrateLoosely({"--layer_costs=false", Scans()}), kExitOk) << err_.str();
  EXPECT_THAT(err_.str(), Not(HasSubstr("what each layer costs")));
  EXPECT_THAT(out_.str(), HasSubstr("2 of 4 layers multiply in 8 bits. As in float are "));
}

TEST_F(CalibrateTest, AnotherModelsFolderIsCreated) {
  const fs::path other = folder_.path() / "eight" / "small" / "1";
  ASSERT_EQ(Run({"--model", model_.string(), "--output", other.string() + "/", "--agreement", "0.5", Scans()}), kExitOk)
      << err_.str();
  EXPECT_EQ(LoadModelVersion(other.parent_path(), 1)->config.precision, ModelConfig::Precision::kInt8);
  ExpectNothingWritten();
}

TEST_F(CalibrateTest, OneScanIsCalibratedOnAndComparedWithAWarning) {
  ASSERT_EQ(CalibrateLoosely({Scan("a.bin")}), kExitOk) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("warning: there is only one scan"));
  EXPECT_THAT(err_.str(), HasSubstr("values of 1 scan\n"));
}

TEST_F(CalibrateTest, TheLastScansAreHeldOut) {
  // The second scan alone has large values, so scales differ if it is calibrated on.
  WriteFile(ScanPath("b.bin"), KittiFile(600, 40));
  const auto scale_of_voxels = [this] { return LoadModelVersion(model_, 2)->graph.nodes[0].scale; };
  ASSERT_EQ(CalibrateLoosely({"--hold_out", "1", Scan("a.bin"), Scan("b.bin")}), kExitOk) << err_.str();
  const float small = scale_of_voxels();
  ASSERT_EQ(CalibrateLoosely({"--overwrite", "--hold_out", "1", Scan("b.bin"), Scan("a.bin")}), kExitOk) << err_.str();
  EXPECT_GT(scale_of_voxels(), 4 * small);
  ASSERT_EQ(CalibrateLoosely({"--overwrite", "--hold_out", "3", Scans()}), kExitOk) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("values of 2 scans"));
  EXPECT_THAT(out_.str(), HasSubstr("in 3 scans"));
}

TEST_F(CalibrateTest, ComparedScansWithNothingToCompareAreRefused) {
  WriteFile(ScanPath("far.bin"), KittiFile(600, 0.5f, 100));  // the model's range ends at 8 m
  ExpectRefused({"--agreement", "0.5", "--hold_out", "1", Scan("a.bin"), Scan("far.bin")},
                "the scans that are compared have no labels, boxes or rows to compare");
}

TEST_F(CalibrateTest, WarnsIfThePolicyWillNoLongerChooseTheFloatVersion) {
  const std::string warning = "warning: version_policy (latest: 1) in " + (model_ / "config.textproto").string() +
                              " will no longer choose version 1, the float version";
  WriteFile(model_ / "config.textproto", "max_points: 5000 version_policy { latest: 1 }");
  for (int i = 0; i < 2; ++i) {  // the second time, version 2 is there already
    ASSERT_EQ(CalibrateLoosely({"--overwrite", "--layer_costs=false", Scans()}), kExitOk) << err_.str();
    EXPECT_THAT(err_.str(), HasSubstr(warning));
  }
  for (const char* const policy : {"latest: 2", "specific { versions: 1 }"}) {
    WriteFile(model_ / "config.textproto", "max_points: 5000 version_policy { " + std::string(policy) + " }");
    ASSERT_EQ(CalibrateLoosely({"--overwrite", "--layer_costs=false", Scans()}), kExitOk) << err_.str();
    EXPECT_THAT(err_.str(), Not(HasSubstr("version_policy"))) << policy;
  }
  WriteFile(model_ / "config.textproto", "max_points: 5000 version_policy { latest: 1 }");
  ASSERT_EQ(Run({"--model", model_.string() + ":1", "--output", (folder_.path() / "elsewhere/small/2").string(),
                 "--agreement", "0.5", "--layer_costs=false", Scans()}),
            kExitOk)
      << err_.str();
  EXPECT_THAT(err_.str(), Not(HasSubstr("version_policy"))) << "the output lies elsewhere";
}

TEST_F(CalibrateTest, LayersThatAreNamedStayInFloat) {
  ASSERT_EQ(CalibrateLoosely({"--float_nodes", "last,down", Scans()}), kExitOk) << err_.str();
  EXPECT_THAT(LoadModelVersion(model_, 2)->config.float_nodes, ElementsAre("down", "head"));
  EXPECT_THAT(out_.str(), HasSubstr("float: named"));
  ASSERT_EQ(CalibrateLoosely({"--overwrite", "--float_nodes", "", Scans()}), kExitOk) << err_.str();
  EXPECT_THAT(LoadModelVersion(model_, 2)->config.float_nodes, IsEmpty());
}

TEST_F(CalibrateTest, AModelWithoutReluIsStoredWithSigns) {
  TestModel model = Model();
  model.Replace("activation { function: FUNCTION_RELU }", "activation { function: FUNCTION_TANH }").WriteTo(model_);
  ASSERT_EQ(CalibrateLoosely({Scans()}), kExitOk) << err_.str();
  const LoadedModel made = *LoadModelVersion(model_, 2);
  EXPECT_EQ(made.graph.nodes[3].name, "relu");
  EXPECT_LE(made.graph.nodes[3].scale, 1.0f / 127 + 1e-6f) << "tanh is at most 1, which is 127 times the scale";
}

TEST_F(CalibrateTest, ATensorsOfAModelWithoutLabelsAreCompared) {
  TestModel model = Model();
  model.graph.resize(model.graph.find("nodes { name: \"best\""));
  model.graph += "outputs { kind: KIND_TENSOR node: \"head\" name: \"rows\" }\n";
  model.config = "";
  fs::remove(model_ / "config.textproto");
  model.WriteTo(model_);
  ASSERT_EQ(CalibrateLoosely({Scans()}), kExitOk) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("rows in 1 scan"));
}

TEST_F(CalibrateTest, AnInterruptLeavesNothing) {
  for (const int after : {0, 3, 8, 11, 13}) {  // the first five before the scans are read
    int calls = 0;
    is_interrupted_ = [&] { return calls++ >= after; };
    EXPECT_EQ(CalibrateLoosely({Scans()}), kExitInterrupted) << after;
    EXPECT_THAT(err_.str(), HasSubstr("voxserve-calibrate: interrupted; nothing was written\n"));
    ExpectNothingWritten();
  }
}

TEST_F(CalibrateTest, AnExistingVersionIsReplacedOnlyIfAsked) {
  ASSERT_EQ(CalibrateLoosely({Scans()}), kExitOk) << err_.str();
  WriteFile(Output() / "notes", "of the older version");
  EXPECT_EQ(CalibrateLoosely({Scans()}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("/2 exists already; --overwrite replaces it"));
  EXPECT_TRUE(fs::exists(Output() / "notes"));
  EXPECT_EQ(CalibrateLoosely({"--overwrite", Scans()}), kExitOk) << err_.str();
  EXPECT_FALSE(fs::exists(Output() / "notes"));
  EXPECT_EQ(Run({"--model", model_.string() + ":1", "--output", (model_ / "1").string(), "--overwrite", Scans()}),
            kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("the version that is calibrated; write another one"));
  EXPECT_THAT(err_.str(), Not(HasSubstr("reading"))) << "refused before the work";
  EXPECT_TRUE(LoadModelVersion(model_, 1).ok());
}

TEST_F(CalibrateTest, AVersionInEightBitsIsRefused) {
  ASSERT_EQ(CalibrateLoosely({Scans()}), kExitOk) << err_.str();
  EXPECT_EQ(Run({"--model", model_.string(), "--output", (model_ / "3").string(), Scans()}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("/2 is a version in 8 bits already; calibrate the version that it was made from"));
}

TEST_F(CalibrateTest, ScansThatCannotBeReadAreLeftOut) {
  WriteFile(ScanPath("bad.pcd"), "no point cloud");
  ASSERT_EQ(CalibrateLoosely({Scans()}), kExitOk) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("left out: " + Scan("bad.pcd")));
  fs::remove_all(Output());
  ExpectRefused({Scan("bad.pcd")}, "none of 1 scans can be used");
  WriteFile(ScanPath("large.bin"), KittiFile(5001));
  ExpectRefused({Scan("large.bin")}, "it has 5001 points, the model takes at most 5000");
}

TEST_F(CalibrateTest, ScansThatTheModelRefusesAreLeftOut) {
  const std::string fields = "x:f32,y:f32,nothing:f32,intensity:f32";
  ExpectRefused({"--fields", fields, Scan("a.bin"), Scan("b.bin")}, "none of the 1 scans to calibrate on can be run");
  EXPECT_THAT(err_.str(), HasSubstr("left out: " + Scan("a.bin")));
}

TEST_F(CalibrateTest, LayersThatNoScanReachesStayInFloat) {
  TestModel model = Model();
  // No site remains behind the crop: the range begins at -8 m, and no point is below 0 m.
  model.Replace("nodes { name: \"down\" inputs: [\"relu\"]",
                "nodes { name: \"none\" inputs: [\"relu\"] crop { lower_bound: [0, 0, 0] upper_bound: [3, 3, 1] } }\n"
                "nodes { name: \"behind\" inputs: [\"none\"] sparse_conv { kind: KIND_SUBMANIFOLD "
                "kernel_size: [3, 3, 3] out_channels: 3 } }\n"
                "nodes { name: \"pooled\" inputs: [\"behind\"] global_pool { reduce: REDUCE_SUM } }\n"
                "nodes { name: \"down\" inputs: [\"relu\"]");
  model.Replace("outputs { kind: KIND_LABELS",
                "outputs { kind: KIND_TENSOR node: \"pooled\" name: \"pooled\" }\n"
                "outputs { kind: KIND_LABELS");
  model.weights["behind.weight"] = FilledTensor({27, 4, 3});
  model.WriteTo(model_);
  ASSERT_EQ(CalibrateLoosely({"--float_nodes", "first", Scans()}), kExitOk) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("warning: no scan reaches \"none\": the layers that read it stay in float"));
  EXPECT_THAT(out_.str(), HasSubstr("float: no scale"));
  EXPECT_THAT(LoadModelVersion(model_, 2)->config.float_nodes, ElementsAre("conv", "behind"));
}

TEST_F(CalibrateTest, ValuesThatAreAlwaysZeroHaveNoScale) {
  TestModel model = Model();
  model.weights["norm.bias"] = FloatTensor({4}, {-1e6f, -1e6f, -1e6f, -1e6f});
  model.WriteTo(model_);
  ASSERT_EQ(CalibrateLoosely({"--float_nodes", "", Scans()}), kExitOk) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("warning: all values of \"relu\" are 0 in these scans"));
  EXPECT_THAT(LoadModelVersion(model_, 2)->config.float_nodes, ElementsAre("down", "up", "head"));
  fs::remove_all(Output());
  ExpectRefused({Scans()}, "no layer is left that could multiply in 8 bits");
}

TEST_F(CalibrateTest, AValueThatIsNotFiniteNamesItsLayerAndScan) {
  TestModel model = Model();
  model.weights["down.weight"] = FloatTensor({8, 4, 3}, std::vector<float>(96, 3e38f));
  model.WriteTo(model_);
  ExpectRefused({Scans()}, Scan("a.bin") + ": ");
  EXPECT_THAT(err_.str(), HasSubstr(" values of \"down\" are NaN or infinite"));
}

// The weights of a channel that is always 0 count for nothing, but in 8 bits the layer's other weights, a thousandth of
// them, become 0.
TestModel ModelThatIsSpoiledBy8Bits(const std::vector<std::string>& layers) {
  TestModel model = Model();
  model.weights["norm.bias"] = FloatTensor({4}, {-1e6f, 0.3f, 0.2f, 0.4f});
  const auto spoil = [&](const std::string& layer, int64_t in_channels, int64_t out_channels) {
    std::vector<float> values(static_cast<size_t>(8 * in_channels * out_channels));
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t in = i / static_cast<size_t>(out_channels) % static_cast<size_t>(in_channels);
      const size_t out = i % static_cast<size_t>(out_channels);
      const bool is_unused = layer == "down" && out == 0;  // so that the first channel behind it is 0
      values[i] = is_unused ? 0 : in == 0 ? 1000 : std::sin(static_cast<float>(3 * i));
    }
    model.weights[layer + ".weight"] = FloatTensor({8, in_channels, out_channels}, values);
  };
  for (const std::string& layer : layers) spoil(layer, layer == "down" ? 4 : 3, layer == "down" ? 3 : 4);
  return model;
}

TEST_F(CalibrateTest, TheWorstLayersReturnToFloatUntilTheAnswersAgree) {
  ModelThatIsSpoiledBy8Bits({"down"}).WriteTo(model_);
  ASSERT_EQ(Calibrate({"--agreement", "0.9", Scans()}), kExitOk) << err_.str() << out_.str();
  EXPECT_THAT(LoadModelVersion(model_, 2)->config.float_nodes, ElementsAre("conv", "down", "head"));
  EXPECT_THAT(out_.str(), HasSubstr("float: returned"));
  EXPECT_THAT(out_.str(), HasSubstr("1 of 4 layers multiply in 8 bits"));
  EXPECT_THAT(out_.str(), HasSubstr("before 1 layer returned to float)"));
  EXPECT_THAT(err_.str(), HasSubstr("comparing, 1 layer back in float\n"));
  ASSERT_EQ(Calibrate({"--overwrite", "--layer_costs=false", "--agreement", "0.9", Scans()}), kExitOk) << err_.str();
  EXPECT_THAT(err_.str(), HasSubstr("what each layer costs")) << "measured, since it is needed";
  EXPECT_THAT(LoadModelVersion(model_, 2)->config.float_nodes, ElementsAre("conv", "down", "head"));
}

TEST_F(CalibrateTest, AnAgreementThatCannotBeReachedWritesNothing) {
  ModelThatIsSpoiledBy8Bits({"down", "up"}).WriteTo(model_);
  ExpectRefused(
      {"--agreement", "0.95", Scans()},
      "the answers do not agree as wanted (--agreement 0.95), even with one layer in 8 bits: as in float are ");
  EXPECT_THAT(out_.str(), HasSubstr("float: returned"));
}

// ---- Scales of another tool.

TEST_F(CalibrateTest, TakesScalesOfAnotherTool) {
  WriteFile(folder_.path() / "scales.json", R"({"relu": 0.25, "down": 0.5, "voxels": 1e-2, "sum": 3, "conv": 0.125})");
  ASSERT_EQ(CalibrateLoosely({"--scales", (folder_.path() / "scales.json").string(), Scans()}), kExitOk) << err_.str();
  const LoadedModel made = *LoadModelVersion(model_, 2);
  EXPECT_EQ(made.graph.nodes[3].scale, 0.25f);
  EXPECT_EQ(made.graph.nodes[4].scale, 0.5f);
  EXPECT_THAT(out_.str(), HasSubstr("in 5 scans")) << "all scans are compared";
  EXPECT_THAT(err_.str(), Not(HasSubstr("values of")));
}

TEST_F(CalibrateTest, ScalesThatDoNotFitTheModelAreRefused) {
  const fs::path file = folder_.path() / "scales.json";
  const auto expect_refused = [&](const std::string& text, const std::string& why) {
    WriteFile(file, text);
    ExpectRefused({"--scales", file.string(), Scans()}, file.string() + ": " + why);
  };
  expect_refused(
      R"({"relu": 1, "down": 1, "stem.0": 1})",
      "it names \"stem.0\", but the model has no such value that 8 bits can store: are these scales of another "
      "model?");
  expect_refused(R"({"relu": 1})", "it lacks a scale for \"down\"");
  expect_refused(R"({"relu": 0, "down": 1})", "the scale of \"relu\" is 0; it must be positive and finite");
  expect_refused(R"({"relu": -1, "down": 1})", "the scale of \"relu\" is -1; it must be positive and finite");
  expect_refused(R"({"relu": 1e300, "down": 1})", "the scale of \"relu\" is 1e+300; it must be positive and finite");
  expect_refused(R"({"relu": 1, "down": 1, "relu": 2})", "\"relu\" appears twice");
  expect_refused(R"({"relu": "1", "down": 1})", "\"relu\" is no number");
  expect_refused(R"({"relu": [1], "down": 1})", "\"relu\" is no number");
  expect_refused(R"({"relu": {"scale": 1}, "down": 1})", "\"relu\" is no number");
  expect_refused("[1, 2]", "it is no object of names and numbers");
  expect_refused("3", "it is no object of names and numbers");
  expect_refused("{\"relu\": 1", "it is no JSON");
  expect_refused("", "it is no JSON");
  expect_refused(std::string(1 << 20, '['), "it is no object of names and numbers");
  ExpectRefused({"--scales", "no/such/file", Scans()}, "no/such/file: cannot be read (");
  WriteFile(file, R"({"relu": 0.25, "down": 0.5})");
  ExpectRefused({"--scales", file.string(), "--hold_out", "6", Scans()},
                "--hold_out is 6, but there are only 5 scans\n");
}

// ---- What cannot be read, written or understood.

TEST_F(CalibrateTest, AFolderThatCannotBeWrittenIsToldBeforeTheWork) {
  const auto expect_refused = [&](const std::string& output, const std::string& why) {
    EXPECT_EQ(Run({"--model", model_.string(), "--output", output, Scans()}), kExitFailure);
    EXPECT_THAT(err_.str(), HasSubstr(why));
    EXPECT_THAT(err_.str(), Not(HasSubstr("reading")));
  };
  expect_refused(Scan("a.bin") + "/1", "/1 cannot be written: ");
  WriteFile(model_ / "7", "a file");
  EXPECT_EQ(Run({"--model", model_.string(), "--output", (model_ / "7").string(), "--overwrite", Scans()}),
            kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("/7 cannot be written: it is no folder"));
}

TEST_F(CalibrateTest, AFolderWithoutPermissionIsToldBeforeTheWork) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  fs::permissions(model_, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_EQ(Calibrate({Scans()}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("/2 cannot be written: Permission denied"));
  EXPECT_THAT(err_.str(), Not(HasSubstr("reading")));
  fs::permissions(model_, fs::perms::owner_all);
}

TEST_F(CalibrateTest, AModelWithoutLayersForEightBitsIsRefused) {
  TestModel model;
  model.graph = R"(name: "none"
nodes { name: "voxels" voxelize { voxel_size: [1, 1, 1] rounding: ROUNDING_FLOOR origin: ORIGIN_MINIMUM
  reduce: REDUCE_FIRST features { name: "x" unit: "m" } } }
nodes { name: "relu" inputs: ["voxels"] activation { function: FUNCTION_RELU } }
outputs { kind: KIND_TENSOR node: "relu" name: "rows" }
)";
  fs::remove(model_ / "config.textproto");
  model.WriteTo(model_);
  EXPECT_EQ(Calibrate({Scans()}), kExitFailure);
  EXPECT_EQ(err_.str(), "voxserve-calibrate: no layer of the model can multiply in 8 bits\n");
}

TEST_F(CalibrateTest, AModelWhoseLayersAllStayInFloatIsRefused) {
  ExpectRefused({"--float_nodes", "first,last,down,up", Scans()}, "no layer is left that could multiply in 8 bits");
}

TEST_F(CalibrateTest, ABrokenModelListsItsProblems) {
  TestModel model = Model();
  model.weights.erase("conv.bias");
  model.weights.erase("norm.bias");
  model.WriteTo(model_);
  ExpectRefused({Scans()}, "voxserve-calibrate: the model has 2 problems:\n  ");
}

TEST_F(CalibrateTest, SaysWhatIsWrongWithTheCommandLine) {
  const auto expect_usage = [&](std::vector<std::string> words, const std::string& why) {
    EXPECT_EQ(Run(std::move(words)), kExitUsage) << why;
    EXPECT_THAT(err_.str(), HasSubstr(why));
    EXPECT_THAT(err_.str(), HasSubstr("; see voxserve-calibrate --help"));
  };
  const std::string model = model_.string(), output = Output().string();
  expect_usage({Scan("a.bin")}, "--model is missing");
  expect_usage({"--model", model, Scan("a.bin")}, "--output is missing");
  expect_usage({"--model", model, "--output", output}, "no scan given");
  for (const char* const name : {"m", "m/0", "m/02", "m/new", "m/-1"}) {
    expect_usage({"--model", model, "--output", name, "s.bin"}, "must be a version folder MODEL/VERSION");
  }
  expect_usage({"--model", model, "--output", output, "--agreement", "1.5", "s.bin"}, "--agreement is '1.5'");
  expect_usage({"--model", model, "--output", output, "--fields", "x", "s.bin"}, "--fields: ");
  expect_usage({"--model", model, "--output", output, "--hold_out", "0", "s.bin"}, "--hold_out is '0'");
  expect_usage({"--modle", model}, "unknown flag --modle (did you mean --model?)");
  expect_usage({"--model", model, "--output", output, model}, "the folder has no scans");
  ExpectRefused({Scan("nothing.bin")}, "nothing.bin: no such file or folder");
  ExpectRefused({"--hold_out", "5", Scans()}, "--hold_out is 5, but there are only 5 scans");
  ExpectRefused({"--hold_out", "2", Scan("a.bin")}, "--hold_out is 2, but there is only 1 scan");
  ExpectRefused({"--float_nodes", "first,stem.0", Scans()},
                "--float_nodes names \"stem.0\", but the layers that can multiply in 8 bits are conv, down, up, head");
  EXPECT_EQ(Run({"--model", "no/such/model", "--output", output, Scans()}), kExitFailure);
  EXPECT_EQ(err_.str(), "voxserve-calibrate: no/such/model: no such folder\n");
}

TEST_F(CalibrateTest, ExplainsItself) {
  EXPECT_EQ(Run({"--help"}), kExitOk);
  EXPECT_THAT(out_.str(), StartsWith("voxserve-calibrate: makes"));
  for (const char* flag : {"--layer_costs", "--model", "--output", "--overwrite", "--agreement", "--float_nodes",
                           "--scales", "--hold_out", "--threads", "--max_scans", "--fields"}) {
    EXPECT_THAT(out_.str(), HasSubstr(flag));
  }
  EXPECT_EQ(Run({"--version"}), kExitOk);
  EXPECT_EQ(out_.str(), "voxserve-calibrate 1.2.3\n");
}

}  // namespace
}  // namespace voxserve::calibrate::calibrate_test
