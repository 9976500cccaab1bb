// Tests the program voxserve-client as users run it: in its own process, against FakeServer.

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cpp/cli/command.h"
#include "client/cpp/cli/commands.h"
#include "gmock/gmock.h"
#include "tests/client/fake_server.h"
#include "tests/client/temporary_folder.h"

namespace voxserve::client::tool_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

class ToolTest : public testing::Test {
 protected:
  // Runs the client with `arguments`, split into words as a shell does.
  Outcome Run(const std::string& arguments, const std::string& environment = "LANG=C.UTF-8") const {
    const std::string line =
        absl::StrCat("env -u NO_COLOR -u LC_ALL -u LC_CTYPE ", environment, " '", VOXSERVE_CLIENT_TOOL, "' ", arguments,
                     " >", folder_.path(), "/out 2>", folder_.path(), "/err </dev/null");
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, folder_.Read("out"), folder_.Read("err")};
  }

  Outcome RunAtServer(const std::string& arguments, const std::string& environment = "LANG=C.UTF-8") const {
    // The fake server has one port for all services.
    const bool is_admin = absl::StartsWith(arguments, "load") || absl::StartsWith(arguments, "unload") ||
                          absl::StartsWith(arguments, "tune");
    return Run(absl::StrCat(arguments, " --address ", server_.address(),
                            is_admin ? absl::StrCat(" --admin_address ", server_.address()) : ""),
               environment);
  }

  // Writes a KITTI scan (float32 x, y, z, intensity) and returns its path. Each point has a given x, y = x / 2, z = 0.
  std::string Scan(const std::string& name, const std::vector<float>& xs, float intensity = 0.5f) const {
    std::string bytes;
    for (const float x : xs) bytes += Bytes(x) + Bytes(x / 2) + Bytes(0.0f) + Bytes(intensity);
    std::filesystem::create_directories(std::filesystem::path(folder_.path() + "/" + name).parent_path());
    return folder_.Write(name, bytes);
  }

  TemporaryFolder folder_;
  FakeServer server_;
};

TEST_F(ToolTest, LabelsAScanAndWritesWhatIsAsked) {
  const std::string scan = Scan("scan.bin", {0, 1, 1, 2, 4, 7, 10, 13});  // labels: x modulo 3
  const std::string truth = folder_.Write("truth.u8", std::string("\x00\x01\x01\x02\x01\x01\x00\xff", 8));
  const Outcome outcome =
      RunAtServer(absl::StrCat("infer --model segmenter ", scan, " --save ", folder_.path(), "/labels.npy --picture ",
                               folder_.path(), "/bev.png --truth ", truth, " --preview"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("scan.bin: 8 points in 4 voxels, labelled by segmenter version 2 on cpu"));
  EXPECT_THAT(outcome.out, ContainsRegex("car +6 +75.0% +4 +100.0%"));
  EXPECT_THAT(outcome.out, ContainsRegex("road +1 +12.5% +2 +50.0%"));
  EXPECT_THAT(outcome.out, HasSubstr("85.7% agree with the labels of people: 6 of 7 points (1 have none)"));
  EXPECT_THAT(outcome.out, ContainsRegex("features +2.50"));
  EXPECT_THAT(outcome.out, ContainsRegex("round trip +[0-9.]+"));
  EXPECT_THAT(outcome.out, HasSubstr("@ sensor"));  // the preview has plain letters, since the output is no terminal
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
  EXPECT_EQ(folder_.Read("labels.npy").substr(128), std::string("\x00\x01\x01\x02\x01\x01\x01\x01", 8));
  EXPECT_THAT(folder_.Read("bev.png"), testing::StartsWith("\x89PNG"));
  EXPECT_EQ(server_.last_request().cloud().data(), folder_.Read("scan.bin"));
}

TEST_F(ToolTest, FindsBoxesAndWritesWhatIsAsked) {
  const std::string scan = Scan("scan.bin", {0, 1, 4, 7});
  const std::string at = folder_.path() + "/";
  const Outcome outcome = RunAtServer(
      absl::StrCat("infer --model detector ", scan, " --save ", at, "boxes.csv --picture ", at, "bev.png --preview"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("scan.bin: 4 points in 2 voxels, 4 boxes found by detector version 2 on cpu"));
  EXPECT_THAT(outcome.out, ContainsRegex("car +3 +0.50"));
  EXPECT_THAT(outcome.out, ContainsRegex("road +1 +1.00"));
  EXPECT_THAT(outcome.out, ContainsRegex("car +0.25 +7.00 +3.50 +1.00 +4.00 +2.00 +1.50 +29 +5.0"));
  EXPECT_THAT(outcome.out, HasSubstr("c car"));  // the preview
  EXPECT_THAT(folder_.Read("boxes.csv"), HasSubstr("4,9\n1,car,0.25,7,3.5,1,4,2,1.5,0.5,3,4,-1\n"));
  EXPECT_THAT(folder_.Read("bev.png"), testing::StartsWith("\x89PNG"));

  Scan("drive/a.bin", {1});
  Scan("drive/b.bin", {1, 2});
  const Outcome many = RunAtServer(absl::StrCat("infer --model detector ", at, "drive --save ", at, "saved"));
  EXPECT_EQ(many.exit_code, 0) << many.err;
  EXPECT_THAT(many.out, ContainsRegex("car +2 +1.00"));
  EXPECT_TRUE(std::filesystem::exists(at + "saved/b.npy"));
  const Outcome json = RunAtServer("infer --json --model detector " + scan);
  EXPECT_EQ(nlohmann::json::parse(json.out)["boxes"][3]["class_name"], "car");
}

TEST_F(ToolTest, ShowsLabelsAndBoxesOfAModelWithBoth) {
  const std::string scan = Scan("scan.bin", {0, 1, 4, 7});
  const std::string truth = folder_.Write("truth.u8", std::string("\x00\x01\x01\x01", 4));
  const std::string at = folder_.path() + "/";
  const std::string command = "infer --model both ";
  const Outcome outcome = RunAtServer(
      absl::StrCat(command, scan, " --save ", at, "boxes.csv --picture ", at, "bev.png --preview --truth ", truth));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("labelled and 4 boxes found by both version 2 on cpu"));
  EXPECT_THAT(outcome.out, ContainsRegex("car +3 +75.0%"));
  EXPECT_THAT(outcome.out, HasSubstr("100.0% agree with the labels of people"));
  EXPECT_THAT(outcome.out, ContainsRegex("car +0.25 +7.00 +3.50 +1.00 +4.00 +2.00 +1.50 +29 +5.0"));
  EXPECT_THAT(outcome.out, HasSubstr(" car box"));  // the preview draws the boxes over the labels
  EXPECT_THAT(folder_.Read("bev.png"), testing::StartsWith("\x89PNG"));
  EXPECT_THAT(folder_.Read("boxes.csv"), HasSubstr("1,car,0.25,7,3.5,1,4,2,1.5,0.5,3,4,-1\n"));
  EXPECT_EQ(server_.num_infer_calls(), 1u);

  EXPECT_EQ(RunAtServer(absl::StrCat(command, scan, " --save ", at, "labels.npy")).exit_code, 0);
  EXPECT_EQ(folder_.Read("labels.npy").substr(128), std::string("\x00\x01\x01\x01", 4));

  const auto json = nlohmann::json::parse(RunAtServer(command + "--json " + scan).out);
  EXPECT_EQ(json["boxes"].size(), 4u);
  EXPECT_EQ(json["classes"].size(), 2u);

  Scan("drive/a.bin", {1});
  Scan("drive/b.bin", {1, 2});
  const Outcome many = RunAtServer(absl::StrCat(command, at, "drive"));
  EXPECT_EQ(many.exit_code, 0) << many.err;
  EXPECT_THAT(many.out, ContainsRegex("car +2 +66.7%"));
  EXPECT_THAT(many.out, ContainsRegex("car +2 +1.00"));
}

TEST_F(ToolTest, AsksASecondModelForBoxesOverTheLabels) {
  const std::string scan = Scan("scan.bin", {0, 1, 4, 7});
  const std::string at = folder_.path() + "/";
  const std::string command = "infer --model segmenter --boxes_model detector ";
  const Outcome outcome =
      RunAtServer(absl::StrCat(command, scan, " --save ", at, "labels.npy --picture ", at, "bev.png --preview"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("labelled by segmenter version 2 on cpu"));
  EXPECT_THAT(outcome.out, HasSubstr("\n4 boxes found by detector version 2 on cpu\n"));
  EXPECT_THAT(outcome.out, ContainsRegex("car +0.25 +7.00 +3.50 +1.00 +4.00 +2.00 +1.50 +29 +5.0"));
  EXPECT_THAT(outcome.out, HasSubstr(" car box"));  // the preview
  EXPECT_THAT(folder_.Read("bev.png"), testing::StartsWith("\x89PNG"));
  EXPECT_EQ(folder_.Read("labels.npy").size(), 128u + 4u);

  const auto json = nlohmann::json::parse(RunAtServer(command + "--json " + scan).out);
  EXPECT_EQ(json["model"], "segmenter");
  EXPECT_EQ(json["boxes_model"], "detector");
  EXPECT_EQ(json["boxes"].size(), 4u);
  EXPECT_GT(json["classes"].size(), 0u);

  Scan("drive/a.bin", {1});
  Scan("drive/b.bin", {1, 2});
  const Outcome many = RunAtServer(absl::StrCat(command, at, "drive"));
  EXPECT_EQ(many.exit_code, 0) << many.err;
  EXPECT_THAT(many.out, ContainsRegex("2 scans, 3 points"));
  EXPECT_THAT(many.out, ContainsRegex("car +2 +1.00"));
}

TEST_F(ToolTest, RefusesWhatIsNotOfTheModelBeforeAnythingIsSent) {
  const std::string scan = Scan("scan.bin", {0});
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"--model detector --save a.label", "detector answers with boxes, written as .json, .csv or .npy"},
           {"--model detector --truth " + scan, "--truth compares labels, but detector answers with boxes"},
           {"--model detector --tensor_type float16", "--tensor_type needs --outputs, as detector answers with boxes"},
           {"--model segmenter --tensor_type float16",
            "--tensor_type needs --outputs, as segmenter answers with labels"},
           {"--model both --tensor_type float16", "needs --outputs, as both answers with labels and boxes"},
           {"--model segmenter --boxes_model segmenter", "--boxes_model: segmenter has no boxes"},
           {"--model detector --boxes_model detector",
            "--boxes_model is for a --model with labels alone, but detector answers with boxes"},
           {"--model both --boxes_model detector", "both answers with labels and boxes here"},
           {"--model detector --boxes_model detector --outputs x", "detector answers with tensors here"},
           {"--model both --save a.npz", "--save a.npz: write a .npy, .label, .json or .csv file, or to a folder"},
           {"--model segmenter --save a.json", "segmenter answers with labels, written as .npy or .label"}}) {
    const Outcome outcome = RunAtServer(absl::StrCat("infer ", scan, " ", arguments));
    EXPECT_EQ(outcome.exit_code, kExitUsage);
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
  EXPECT_EQ(server_.num_infer_calls(), 0u);
  EXPECT_THAT(RunAtServer("models detector").out, HasSubstr("answers      boxes with velocities"));
  EXPECT_THAT(RunAtServer("models both").out, HasSubstr("answers      labels, with scores on request; boxes with"));
}

TEST_F(ToolTest, LimitsAndReachAreShownWhereTheServerTellsThem) {
  const std::string limited = RunAtServer("models limited").out;
  EXPECT_THAT(limited, HasSubstr("limit        2,000,000 points a request, 60,000 voxels (the first ones are kept), "
                                 "67,108,864 bytes\n"));
  EXPECT_THAT(limited, HasSubstr("reach        9.9 x 9.9 x unbounded m (pool reads whole clouds)\n"));
  const std::string older = RunAtServer("models segmenter").out;
  EXPECT_THAT(older, HasSubstr("limit        2,000,000 points a request\n"));
  EXPECT_THAT(older, Not(HasSubstr("reach")));
}

TEST_F(ToolTest, OfAVersionThatIsNotReadyNothingIsKnown) {
  const std::string scan = Scan("scan.bin", {0});
  const std::string truth = folder_.Write("truth.u8", "0");
  for (const std::string& output :
       {std::string(" --save a.json"), std::string(" --save a.label"), " --truth " + truth}) {
    for (const auto& [model, message] : {std::pair("broken", "2 problems"), std::pair("loading", "is loading")}) {
      const Outcome outcome = RunAtServer(absl::StrCat("infer --model ", model, " ", scan, output));
      EXPECT_EQ(outcome.exit_code, kExitFailure) << outcome.err;
      EXPECT_THAT(outcome.err, HasSubstr(message)) << "the server's own";
    }
  }
  EXPECT_THAT(RunAtServer("models broken").out, Not(HasSubstr("answers")));
  const std::string loading = RunAtServer("models loading").out;
  EXPECT_THAT(loading, HasSubstr("loading version 1: loading"));
  EXPECT_THAT(loading, HasSubstr("road"));
  EXPECT_THAT(loading, Not(ContainsRegex("answers|not labelled")));
}

TEST_F(ToolTest, ColoursAndUnicodeFollowTheFlagAndTheLocale) {
  const std::string infer = absl::StrCat("infer --model segmenter ", Scan("scan.bin", {0, 1, 2}));
  EXPECT_THAT(RunAtServer(infer + " --color always --preview").out, HasSubstr("\x1b[38;2;"));
  EXPECT_THAT(RunAtServer(infer).out, HasSubstr("\u2588"));
  for (const char c : RunAtServer(infer, "LANG=C").out) EXPECT_GE(c, '\n');
  EXPECT_EQ(RunAtServer(infer + " --color sometimes").exit_code, kExitUsage);
}

TEST_F(ToolTest, LabelsAFolderSeveralAtATimeAndListsWhatFailed) {
  for (int i = 0; i < 6; ++i) Scan(absl::StrCat("drive/", i, ".bin"), {0, 1, 1});
  folder_.Write("drive/bad.bin", "not points");
  folder_.Write("drive/worse.pcd", "not a cloud");
  const std::string output = folder_.path() + "/out_folder";
  const Outcome outcome = RunAtServer(
      absl::StrCat("infer --model segmenter ", folder_.path(), "/drive --save ", output, " --picture ", output));
  EXPECT_EQ(outcome.exit_code, kExitFailure);
  EXPECT_THAT(outcome.out, ContainsRegex("6 scans, 18 points in .*scans/s.*round trip p50"));
  EXPECT_THAT(outcome.out, ContainsRegex("car +12 +66.7%"));
  EXPECT_THAT(outcome.out, HasSubstr("wrote 12 files"));
  EXPECT_THAT(outcome.err, HasSubstr("2 of 8 scans failed"));
  EXPECT_THAT(outcome.err, ContainsRegex("bad.bin: .*10 bytes"));
  EXPECT_THAT(outcome.err, ContainsRegex("worse.pcd: .*PCD"));
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(std::filesystem::exists(absl::StrCat(output, "/", i, ".npy")));
  EXPECT_FALSE(std::filesystem::exists(output + "/bad.npy"));
}

TEST_F(ToolTest, PrintsALineOfJsonPerScan) {
  Scan("drive/a.bin", {0, 1});
  folder_.Write("drive/b.bin", "odd");
  const Outcome outcome = RunAtServer(absl::StrCat("infer --json --model segmenter ", folder_.path(), "/drive"));
  EXPECT_EQ(outcome.exit_code, kExitFailure);
  const std::vector<std::string> lines = absl::StrSplit(outcome.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2u);
  std::map<std::string, nlohmann::json> by_name;
  for (const std::string& line : lines) {
    const auto json = nlohmann::json::parse(line);
    by_name[std::filesystem::path(json["file"].get<std::string>()).filename()] = json;
  }
  EXPECT_EQ(by_name["a.bin"]["points"], 2);
  EXPECT_EQ(by_name["b.bin"]["error"]["code"], "INVALID_ARGUMENT");
}

TEST_F(ToolTest, SamplesFarthestPoints) {
  const std::string scan = Scan("scan.bin", {0, 1, 2, 3});
  const Outcome outcome =
      RunAtServer("infer --json --model segmenter --sample 2 --sample_start 1 --sample_use network " + scan);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["sampled_points"], nlohmann::json({1, 2}));
  EXPECT_EQ(json["unsampled"], 2);
  EXPECT_THAT(RunAtServer("infer --model segmenter --sample 2 " + scan).out, HasSubstr("sampled: 2 farthest points"));
  for (const char* flags : {"--sample 0", "--sample_use network", "--sample_start 1", "--sample 2 --sample_use all"}) {
    const Outcome refused = RunAtServer(absl::StrCat("infer --model segmenter ", flags, " ", scan));
    EXPECT_EQ(refused.exit_code, kExitUsage) << flags;
    EXPECT_THAT(refused.err, HasSubstr("--sample")) << flags;
  }
}

TEST_F(ToolTest, WarnsOfIntensitiesInTheWrongUnit) {
  const std::string scan = Scan("scan.bin", {0, 1}, 200);
  const Outcome raw = RunAtServer("infer --model segmenter " + scan);
  EXPECT_EQ(raw.exit_code, 0);
  EXPECT_THAT(raw.err, ContainsRegex("intensities of .*scan.bin reach 200"));
  EXPECT_THAT(raw.err, HasSubstr("scale them with --fields intensity=intensity*0.00392 if they are 0 to 255\n"));
  const Outcome scaled = RunAtServer("infer --model segmenter --fields 'intensity=intensity*0.00392' " + scan);
  EXPECT_EQ(scaled.err, "");
  EXPECT_EQ(server_.last_request().cloud().fields(3).scale(), 0.00392);
}

TEST_F(ToolTest, ShowsTheServersWarningOnce) {
  const std::string scans = absl::StrCat(Scan("a.bin", {0, 1}, 200), " ", Scan("b.bin", {0, 1}, 200));
  const Outcome ran = RunAtServer(absl::StrCat("infer --model ranged ", scans));
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.err, ContainsRegex("intensity of .*bin is 0 to 200, but ranged was trained on 0 to 1"));
  EXPECT_THAT(ran.err, HasSubstr("; scale it with --fields intensity=intensity*FACTOR, e.g. 0.00392 if 255 must be 1"));
  EXPECT_EQ(ran.err.find("warning"), ran.err.rfind("warning")) << ran.err;
}

TEST_F(ToolTest, WarnsOnceOfScansOutsideOfTheRange) {
  const std::string scans = absl::StrCat(Scan("a.bin", {0, 1}), " ", Scan("b.bin", {0, 1}));
  const Outcome ran = RunAtServer(absl::StrCat("infer --model distant ", scans));
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.err,
              ContainsRegex("warning: .*bin: 990 of 992 points lie outside of the range that distant accepts"));
  EXPECT_EQ(ran.err.find("warning"), ran.err.rfind("warning")) << ran.err;
}

TEST_F(ToolTest, WarnsOnceOfScoresThatAreNotFinite) {
  const std::string scans = absl::StrCat(Scan("a.bin", {0, 1}), " ", Scan("b.bin", {0, 1}));
  const Outcome ran = RunAtServer(absl::StrCat("infer --model narrow ", scans));
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_THAT(ran.err, ContainsRegex("warning: .*bin: narrow has NaN or infinite values for 1 of 2 points, which get"));
  EXPECT_EQ(ran.err.find("warning"), ran.err.rfind("warning")) << ran.err;
}

TEST_F(ToolTest, ReadsAFieldOfAnotherName) {
  const std::string scan = Scan("scan.bin", {0, 1});
  const Outcome swapped = RunAtServer("infer --model segmenter --fields x=y*2 --fields y=x " + scan);
  EXPECT_EQ(swapped.exit_code, 0) << swapped.err;
  const v1::PointCloud cloud = server_.last_request().cloud();
  EXPECT_EQ(cloud.fields(0).name(), "y");
  EXPECT_EQ(cloud.fields(1).name(), "x");
  EXPECT_EQ(cloud.fields(1).scale(), 2);
  EXPECT_EQ(swapped.err, "");
  const Outcome misspelt = RunAtServer("infer --model segmenter --fields intensty=intensity " + scan);
  EXPECT_EQ(misspelt.exit_code, 0);
  EXPECT_THAT(misspelt.err,
              HasSubstr("warning: --fields names 'intensty', which segmenter does not read; it reads x, y, z"));
  const Outcome unknown = RunAtServer("infer --model segmenter --fields intensity=reflectivity " + scan);
  EXPECT_EQ(unknown.exit_code, kExitFailure);
  EXPECT_THAT(unknown.err, HasSubstr("intensity=reflectivity, but the points have x, y, z, intensity"));
}

TEST_F(ToolTest, SaysInOneLineWhatWentWrongAndWhatToDo) {
  const std::string scan = Scan("scan.bin", {0, 1});
  struct Case {
    std::string arguments;
    int exit_code;
    std::string complaint, advice;
  };
  for (const Case& c : std::vector<Case>{
           {"infer --model missing " + scan, kExitFailure, "no model 'missing'", "voxserve-client models"},
           {"infer --model full " + scan, kExitFailure, "the queue is full", "--concurrency"},
           {"infer --model loading " + scan, kExitFailure, "loading", "health --wait"},
           {"infer --model slow --timeout 150ms " + scan, kExitFailure, "no answer from", "--timeout"},
           {"infer --model liar " + scan, kExitFailure, "1 bytes of labels for 2 points", ""},
           {"infer --model segmenter /no/scan.bin", kExitFailure, "/no/scan.bin: no such file", ""},
           {"infer --model segmenter --truth " + scan + " " + scan, kExitFailure, "32 bytes are not 2 labels", ""},
           {"infer --model segmenter --save /no/such/l.npy " + scan, kExitFailure, "/no/such/l.npy", ""},
           {"infer " + scan, kExitUsage, "--model is missing", "help infer"},
           {"infer --model segmenter", kExitUsage, "no scan given", "help infer"},
           {"infer --model segmenter --fields x:q " + scan, kExitUsage, "type 'q'", "help infer"},
           {"infer --modle segmenter " + scan, kExitUsage, "unknown flag --modle", "help infer"},
           {"infer --model segmenter --preview " + scan + " " + scan, kExitUsage, "--preview", "help infer"},
           {"models a b", kExitUsage, "one model", "help models"},
           {"models --version 1", kExitUsage, "--version needs", "help models"},
           {"tune --model missing", kExitFailure, "no model 'missing'", "voxserve-client models"},
           {"tune --model full", kExitFailure, "a plan for full is being searched", "wait for it"},
           {"tune --model slow --timeout 150ms", kExitFailure, "no answer from", "--timeout"},
           {"tune", kExitUsage, "--model is missing", "help tune"},
           {"tune --model segmenter scan.bin", kExitUsage, "no arguments", "help tune"},
           {"tune --model segmenter --scans 101", kExitUsage, "101", "help tune"},
           {"tune --model segmenter --scans 0", kExitUsage, "0", "help tune"},
           {"tune --model segmenter --max_wait 5", kExitUsage, "5", "help tune"},
           {"load missing", kExitFailure, "no model 'missing'", "voxserve-client models"},
           {"load broken", kExitFailure, "2 problems: no tensor conv1.weight; no tensor conv1.bias", "load it again"},
           {"load slow --timeout 150ms", kExitFailure, "no answer from", "--timeout"},
           {"load", kExitUsage, "the model's name is missing", "help load"},
           {"load a b", kExitUsage, "give one model only", "help load"},
           {"load segmenter --version 0", kExitUsage, "0", "help load"},
           {"load segmenter --version newest", kExitUsage, "newest", "help load"},
           {"unload missing", kExitFailure, "no model 'missing'", "voxserve-client models"},
           {"unload", kExitUsage, "the model's name is missing", "help unload"},
           {"unload segmenter --version -1", kExitUsage, "-1", "help unload"},
           {"load segmenter --token_file /no/token", kExitFailure, "--token_file /no/token cannot be read", ""},
           {"models --tls_ca /no/ca.pem", kExitFailure, "tls_ca: /no/ca.pem cannot be read", ""},
           {"models --token_file /dev/zero", kExitFailure, "more than the 1048576 bytes that such a file may have", ""},
           {"models --tls_ca /dev/zero", kExitFailure, "tls_ca: /dev/zero cannot be read: more than the 1048576", ""},
           {"models --token_file /", kExitFailure, "--token_file / cannot be read: Is a directory", ""},
           {"models --tls_ca " + scan, kExitFailure, "is no PEM file", ""},
           {"models --tls_key k", kExitFailure, "tls_certificate and tls_key need each other", ""},
           {"health now", kExitUsage, "no arguments", "help health"},
           {"bench " + scan, kExitUsage, "--model is missing", "help bench"},
           {"bench --model segmenter " + scan + " --rate 1 --streams 1", kExitUsage, "choose one", "help bench"},
           {"bench --model missing " + scan, kExitFailure, "no model 'missing'", "voxserve-client models"},
           {"bench --model segmenter /no/scan.bin", kExitFailure, "/no/scan.bin: no such file", ""},
           {"benhc", kExitUsage, "unknown command 'benhc'", "voxserve-client help"}}) {
    const Outcome outcome = RunAtServer(c.arguments);
    EXPECT_EQ(outcome.exit_code, c.exit_code) << c.arguments << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(c.complaint)) << c.arguments;
    EXPECT_THAT(outcome.err, HasSubstr(c.advice)) << c.arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_EQ(outcome.out, "") << c.arguments;
  }
}

TEST_F(ToolTest, SaysHowToStartAServerWhereThereIsNone) {
  const std::string address = UnusedAddress();
  for (const std::string command : {"models", "health", "models segmenter"}) {
    const Outcome outcome = Run(absl::StrCat(command, " --address ", address));
    EXPECT_EQ(outcome.exit_code, kExitFailure);
    EXPECT_THAT(outcome.err, HasSubstr("no server at " + address));
    EXPECT_THAT(outcome.err, HasSubstr("voxserve --model_repository"));
  }
}

TEST_F(ToolTest, ListsModelsWithTheirProblems) {
  const Outcome list = RunAtServer("models");
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_THAT(list.out, ContainsRegex("segmenter +2 +ready +3 +5,441,036 +cpu"));
  EXPECT_THAT(list.out, ContainsRegex("broken +1 +failed"));
  EXPECT_THAT(list.out, HasSubstr("conv1: no tensor conv1.weight"));
  const Outcome details = RunAtServer("models segmenter --version 1");
  EXPECT_EQ(details.exit_code, 0);
  EXPECT_THAT(details.out, HasSubstr("segmenter version 1: ready"));
  EXPECT_THAT(details.out, HasSubstr("0.05 x 0.05 x 0.05 m"));
  EXPECT_THAT(details.out, HasSubstr("x m, y m, z m, intensity 0..1 (default 0.25)"));
  EXPECT_THAT(details.out, HasSubstr("1  car                  #285aff"));
  EXPECT_THAT(details.out, HasSubstr("255  not labelled"));
}

TEST_F(ToolTest, TunesWithProgressAndATableOfWhatItWon) {
  const Outcome outcome = RunAtServer("tune --model segmenter --version 2 --scans 7 --max_wait 90s");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, testing::MatchesRegex("\\[\\.+\\]   0%  waiting for scans\n"
                                                 "\\[#+\\.+\\]  25%  candidates\n"
                                                 "\\[#+\\.\\]  99%  checking\n"));
  EXPECT_THAT(outcome.out, HasSubstr("segmenter tuned on NVIDIA H200 with 7 scans in 61.50 s\n"));
  EXPECT_THAT(outcome.out, ContainsRegex("below 50,000 +1 +3.00 ms +2.00 ms +1.50x"));
  EXPECT_THAT(outcome.out, ContainsRegex("50,000 to 100,000 +2 +6.00 ms +4.00 ms +1.50x"));
  EXPECT_THAT(outcome.out, ContainsRegex("from 100,000 +3 +9.00 ms +6.00 ms +1.50x"));
  EXPECT_THAT(outcome.out, HasSubstr("the server wrote /plans/segmenter.textproto\n"));
  EXPECT_EQ(server_.last_tune_request().version(), 2);
  EXPECT_EQ(server_.last_tune_request().num_scans(), 7);
  EXPECT_EQ(server_.last_tune_request().max_wait_seconds(), 90);
  EXPECT_THAT(RunAtServer("tune --model wide").out, HasSubstr("could not write the plan"));
  const Outcome liar = RunAtServer("tune --model liar");
  EXPECT_EQ(liar.exit_code, kExitFailure);
  EXPECT_THAT(liar.err, HasSubstr("without a result"));
}

TEST_F(ToolTest, LoadsAndUnloadsModels) {
  EXPECT_EQ(RunAtServer("load segmenter").out, "segmenter: versions 1, 2 in service\n");
  EXPECT_EQ(RunAtServer("load segmenter --version 7").out, "segmenter: version 7 in service\n");
  EXPECT_EQ(RunAtServer("load wide").out, "wide: no version is in service\n");
  EXPECT_EQ(RunAtServer("unload segmenter").out, "segmenter: versions 1, 2 taken out of service\n");
  const Outcome one = RunAtServer("unload segmenter --version 7");
  EXPECT_EQ(one.out, "segmenter: version 7 taken out of service\n");
  EXPECT_EQ(one.exit_code, 0);
}

TEST_F(ToolTest, HealthIsItsExitCode) {
  server_.SetServing(true);
  const Outcome serving = RunAtServer("health");
  EXPECT_EQ(serving.exit_code, 0);
  EXPECT_EQ(serving.out, "serving\n");
  server_.SetServing(false);
  const Outcome not_serving = RunAtServer("health");
  EXPECT_EQ(not_serving.exit_code, kExitFailure);
  EXPECT_EQ(not_serving.out, "not serving\n");
  EXPECT_EQ(RunAtServer("health --wait 300ms").exit_code, kExitFailure);
  std::thread starter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    server_.SetServing(true);
  });
  EXPECT_EQ(RunAtServer("health --wait 60s").exit_code, 0);
  starter.join();
}

TEST_F(ToolTest, BenchesEachKindOfLoadAndWritesJson) {
  const std::string scans = absl::StrCat(Scan("a.bin", {0, 1}), " ", Scan("b.bin", {0, 1, 2, 4}));
  const std::string bounds = " --warm_up 0s --duration 4m --requests 20 ";
  for (const std::string load : {"--concurrency 3", "--rate 2000 --arrivals poisson", "--streams 2 --frame_rate 200"}) {
    const std::string json = folder_.path() + "/bench.json";
    const Outcome outcome =
        RunAtServer(absl::StrCat("bench --model segmenter ", scans, bounds, load, " --json ", json));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    EXPECT_THAT(outcome.out, HasSubstr("2 scans of 3 points on average"));
    EXPECT_THAT(outcome.out, ContainsRegex("requests +20, "));
    EXPECT_THAT(outcome.out, ContainsRegex("throughput +[0-9.]+ scans/s"));
    EXPECT_THAT(outcome.out, ContainsRegex("features +2.50"));
    EXPECT_EQ(nlohmann::json::parse(folder_.Read("bench.json"))["requests"], 20) << load;
  }
  // --timeout is the time limit of the load's requests. The call that looks up the model keeps its own, longer limit.
  RunAtServer(absl::StrCat("bench --model segmenter ", scans, bounds, " --timeout 1s"));
  EXPECT_GT(server_.last_get_model_timeout(), std::chrono::seconds(10));
  const Outcome refused = RunAtServer(absl::StrCat("bench --model full ", scans, bounds));
  EXPECT_EQ(refused.exit_code, kExitFailure);
  EXPECT_THAT(refused.out, ContainsRegex("RESOURCE_EXHAUSTED QUEUE_FULL +20 +100.0%"));
  EXPECT_THAT(refused.err, HasSubstr("the queue is full"));
  const Outcome unwritable =
      RunAtServer(absl::StrCat("bench --model segmenter ", scans, bounds, " --json /no/such/bench.json"));
  EXPECT_EQ(unwritable.exit_code, kExitFailure);
  EXPECT_THAT(unwritable.err, HasSubstr("/no/such/bench.json"));
}

TEST_F(ToolTest, HelpMentionsEveryCommandAndFlag) {
  const Outcome overview = Run("help");
  EXPECT_EQ(overview.exit_code, 0);
  for (const Command& command : AllCommands()) {
    EXPECT_THAT(overview.out, HasSubstr("  " + command.help.name + " "));
    const Outcome page = Run("help " + command.help.name);
    EXPECT_EQ(page.exit_code, 0);
    for (const Flag& flag : command.list_flags()) EXPECT_THAT(page.out, HasSubstr("--" + flag.name));
    EXPECT_EQ(Run(command.help.name + " --help").out, page.out);
  }
  EXPECT_EQ(Run("--help").out, overview.out);
  EXPECT_EQ(Run("").exit_code, kExitUsage);
  EXPECT_EQ(Run("help nothing").exit_code, kExitUsage);
}

}  // namespace
}  // namespace voxserve::client::tool_test
