#include "client/cpp/cli/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "client/cpp/cli/progress_bar.h"
#include "gmock/gmock.h"

namespace voxserve::client::report_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<v1::ClassInfo> Classes() {
  std::vector<v1::ClassInfo> classes;
  for (const char* name : {"road", "car", "person"}) {
    v1::ClassInfo& info = classes.emplace_back();
    info.set_id(static_cast<uint32_t>(classes.size() - 1));
    info.set_name(name);
    info.set_color_rgb(0x0a0b0c);
  }
  return classes;
}

ScanReport Report() {
  ScanReport report;
  report.file = "scan.bin";
  report.result.model = "minkunet";
  report.result.version = 3;
  report.result.device = "cpu";
  report.result.counts.set_used(7);
  report.result.counts.set_invalid(1);
  report.result.counts.set_voxels(5);
  report.result.stages = {{"decode", absl::Microseconds(500)}, {"features", absl::Milliseconds(9)}};
  report.result.round_trip = absl::Milliseconds(12);
  report.num_points = 8;
  const std::vector<uint16_t> labels = {0, 0, 0, 0, 1, 1, 0, 255};
  report.has_labels = true;
  report.classes = CountClasses(labels, 255, Classes());
  report.agreement = Compare(labels, {0, 0, 0, 1, 1, 2, 255, 0}, 255, Classes());
  return report;
}

TEST(ReportTest, ComparesWithPeople) {
  const Agreement agreement = *Report().agreement;
  EXPECT_EQ(agreement.total.num_points, 7u);
  EXPECT_EQ(agreement.total.num_agreeing, 4u);
  EXPECT_EQ(agreement.num_without, 1u);
  EXPECT_EQ(agreement.by_class.at(0).num_points, 4u);
  EXPECT_EQ(agreement.by_class.at(0).num_agreeing, 3u);
  EXPECT_EQ(agreement.by_class.at(1).num_points, 2u);
  EXPECT_EQ(agreement.by_class.at(1).num_agreeing, 1u);
  EXPECT_EQ(agreement.by_class.at(2).num_agreeing, 0u);
  // A label may belong to a class of another data set. It counts as a point without a class, not as an error.
  EXPECT_EQ(Compare({0, 1}, {40, 252}, 255, Classes()).num_without, 2u);
  Agreement sum = agreement;
  sum.Add(agreement);
  EXPECT_EQ(sum.total.num_agreeing, 8u);
  EXPECT_EQ(sum.by_class.at(2).name, "person");
}

TEST(ReportTest, SaysItAllInPlainText) {
  const std::string text = FormatReport(Report(), Classes(), Terminal());
  EXPECT_THAT(text, HasSubstr("scan.bin: 8 points in 5 voxels, labelled by minkunet version 3 on cpu"));
  EXPECT_THAT(text, testing::ContainsRegex("road +5 +62.5% +4 +75.0%  #+"));
  EXPECT_THAT(text, testing::ContainsRegex("car +2 +25.0% +2 +50.0%  #+"));
  EXPECT_THAT(text, testing::ContainsRegex("person +0 +0.0% +1 +0.0%"));  // only the given labels have this class
  EXPECT_THAT(text, testing::ContainsRegex("not labelled +1 +12.5%"));
  EXPECT_THAT(text, HasSubstr("57.1% agree with the labels of people: 4 of 7 points (1 have none)"));
  EXPECT_THAT(text, HasSubstr("not labelled: 1 NaN or infinite"));
  EXPECT_THAT(text, testing::ContainsRegex("features +9.00"));
  EXPECT_THAT(text, testing::ContainsRegex("server +9.50"));
  EXPECT_THAT(text, testing::ContainsRegex("round trip +12.00  network and gRPC 2.5 ms"));
  for (const char c : text) EXPECT_GE(c, '\n');  // no colours, no Unicode
}

TEST(ReportTest, UsesColoursAndBlocksWhereTheTerminalHasThem) {
  const std::string text = FormatReport(Report(), Classes(), {.out_color = true, .out_unicode = true});
  EXPECT_THAT(text, HasSubstr("\x1b[38;2;10;11;12m"));
  EXPECT_THAT(text, HasSubstr("\u2588"));
}

TEST(ReportTest, LeavesThePeopleOutWhereThereAreNone) {
  ScanReport report = Report();
  report.agreement.reset();
  EXPECT_THAT(FormatReport(report, Classes(), Terminal()), Not(HasSubstr("people")));
}

TEST(ReportTest, TellsOfASample) {
  ScanReport report = Report();
  EXPECT_THAT(FormatReport(report, Classes(), Terminal()), Not(HasSubstr("sampled")));
  EXPECT_FALSE(nlohmann::json::parse(FormatJson(report)).contains("sampled_points"));
  report.result.sampled_points = {6, 0, 3};
  report.result.counts.set_unsampled(4);
  const std::string text = FormatReport(report, Classes(), Terminal());
  EXPECT_THAT(text, HasSubstr("not labelled: 1 NaN or infinite, 4 not in the sample"));
  EXPECT_THAT(text, HasSubstr("sampled: 3 farthest points"));
  const nlohmann::json json = nlohmann::json::parse(FormatJson(report));
  EXPECT_EQ(json["sampled_points"], nlohmann::json({6, 0, 3}));
  EXPECT_EQ(json["unsampled"], 4);
}

TEST(ReportTest, TellsOfPointsWithoutFiniteLogits) {
  ScanReport report = Report();
  EXPECT_EQ(nlohmann::json::parse(FormatJson(report))["not_finite"], 0);
  report.result.counts.set_not_finite(3);
  EXPECT_THAT(FormatReport(report, Classes(), Terminal()),
              HasSubstr("not labelled: 1 NaN or infinite, 3 without finite logits"));
  EXPECT_EQ(nlohmann::json::parse(FormatJson(report))["not_finite"], 3);
}

TEST(ReportTest, TellsOfBoxesThatAreNotFinite) {
  ScanReport report = Report();
  EXPECT_EQ(nlohmann::json::parse(FormatJson(report))["boxes_not_finite"], 0);
  report.result.counts.set_boxes_not_finite(1234);
  EXPECT_THAT(FormatReport(report, Classes(), Terminal()),
              HasSubstr("boxes left out: 1,234 candidates with NaN or infinite numbers"));
  EXPECT_EQ(nlohmann::json::parse(FormatJson(report))["boxes_not_finite"], 1234);
}

TEST(ReportTest, JsonIsOneLineForPrograms) {
  ScanReport report = Report();
  report.file = "bad \xff name";
  const std::string line = FormatJson(report);
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  const nlohmann::json json = nlohmann::json::parse(line);
  EXPECT_EQ(json["points"], 8);
  EXPECT_EQ(json["classes"][0]["name"], "road");
  EXPECT_EQ(json["classes"][0]["points"], 5);
  EXPECT_EQ(json["stages_ms"]["features"], 9.0);
  EXPECT_EQ(json["round_trip_ms"], 12.0);
  EXPECT_EQ(json["truth"]["classes"]["person"]["points"], 1);
  const auto error = nlohmann::json::parse(FormatJsonError("a", WithReason(absl::NotFoundError("gone"), "WHY")));
  EXPECT_EQ(error["error"]["reason"], "WHY");
  EXPECT_EQ(error["error"]["code"], "NOT_FOUND");
}

TEST(ProgressTest, ShowsRateAndWhatIsLeft) {
  EXPECT_EQ(FormatProgress(0, 10, 0, absl::Seconds(0)), "[..............................] 0/10 scans");
  EXPECT_EQ(FormatProgress(5, 10, 1, absl::Seconds(10)),
            "[###############...............] 5/10 scans  0.5/s  0:10 left  1 failed");
  EXPECT_EQ(FormatProgress(10, 10, 0, absl::Seconds(5)),
            "[##############################] 10/10 scans  2.0/s  0:00 left");
  EXPECT_THAT(FormatProgress(1, 1000, 0, absl::Seconds(1)), HasSubstr("16:39 left"));
}

}  // namespace
}  // namespace voxserve::client::report_test
