#include "client/cpp/cli/box_report.h"

#include <nlohmann/json.hpp>

#include "client/cpp/cli/report.h"
#include "gmock/gmock.h"

namespace voxserve::client::box_report_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

ScanReport Report(size_t num_cars) {
  ScanReport report;
  report.file = "scan.bin";
  report.result.model = "centerpoint";
  report.result.version = 3;
  report.result.device = "cpu";
  report.result.counts.set_out_of_range(2);
  report.num_points = 1234;
  report.boxes.emplace();
  for (size_t i = 0; i < num_cars; ++i) {
    report.boxes->push_back({.class_id = 1,
                             .class_name = "car",
                             .score = 0.875f,
                             .x = 12.5f,
                             .length = 4.5f,
                             .yaw = 1.5707963f,
                             .velocity_x = 3,
                             .velocity_y = 4});
  }
  return report;
}

TEST(BoxReportTest, SaysItAllInPlainText) {
  const std::string text = FormatReport(Report(2), {}, Terminal());
  EXPECT_THAT(text, HasSubstr("scan.bin: 1,234 points in 0 voxels, 2 boxes found by centerpoint version 3 on cpu"));
  EXPECT_THAT(text, ContainsRegex("car +2 +0.88  #+"));
  EXPECT_THAT(text, ContainsRegex("car +0.88 +12.50 +0.00 +0.00 +4.50 +0.00 +0.00 +90 +5.0"));
  EXPECT_THAT(text, HasSubstr("not used: 2 out of range"));
  EXPECT_THAT(text, Not(HasSubstr("label")));
  for (const char c : text) EXPECT_GE(c, '\n');  // no colours, no Unicode
}

TEST(BoxReportTest, QueriesAreTheLastColumnWhereABoxHasOne) {
  ScanReport report = Report(2);
  EXPECT_THAT(FormatReport(report, {}, Terminal()), Not(HasSubstr("query")));
  (*report.boxes)[1].query = 70;
  const std::string text = FormatReport(report, {}, Terminal());
  EXPECT_THAT(text, HasSubstr("m/s  query\n"));
  EXPECT_THAT(text, ContainsRegex("car +0.88 [^\n]* 5.0\n[^\n]* 5.0 +70\n"));
}

TEST(BoxReportTest, LabelsOfTheSameModelComeBeforeTheBoxes) {
  ScanReport report = Report(2);
  report.has_labels = true;
  report.classes = {{.id = 0, .name = "road", .num_points = 617, .share = 0.5}};
  const std::string text = FormatReport(report, {}, Terminal());
  EXPECT_THAT(text, HasSubstr("labelled and 2 boxes found by centerpoint version 3 on cpu"));
  EXPECT_THAT(text,
              ContainsRegex("road +617 +50.0%[^\n]*\n[^\n]*not labelled[^\n]*\n\n +class +boxes +best\n +car +2 "));
  EXPECT_THAT(text, HasSubstr("not labelled: 2 out of range"));
  const nlohmann::json json = nlohmann::json::parse(FormatJson(report));
  EXPECT_EQ(json["classes"][0]["points"], 617);
  EXPECT_EQ(json["boxes"].size(), 2u);
}

TEST(BoxReportTest, LongListsEnd) {
  EXPECT_THAT(FormatReport(Report(20), {}, Terminal()), Not(HasSubstr(" more")));
  EXPECT_THAT(FormatReport(Report(23), {}, Terminal()), HasSubstr("  3 more; use --json or --save for all"));
}

// A network with several heads answers the boxes of one head after those of another. Only the boxes of one head are
// sorted by score, so the report must sort them all.
TEST(BoxReportTest, TheSurestBoxesComeFirst) {
  ScanReport report = Report(22);
  report.boxes->insert(report.boxes->begin() + 10, {.class_name = "first", .score = 0.9f});
  report.boxes->push_back({.class_name = "second", .score = 0.9f});
  report.boxes->insert(report.boxes->begin(), {.class_name = "last", .score = 0.1f});
  const std::string text = FormatReport(report, {}, Terminal());
  const std::string table = text.substr(text.find("box  "));
  EXPECT_THAT(table, ContainsRegex("m/s\n +first +0.90 [^\n]*\n +second +0.90 [^\n]*\n +car +0.88 "));
  EXPECT_THAT(table, Not(HasSubstr("last")));
  EXPECT_THAT(table, HasSubstr("  5 more;"));
  EXPECT_EQ(nlohmann::json::parse(FormatJson(report))["boxes"][0]["class_name"], "last") << "the answer as it is";
}

TEST(BoxReportTest, NoBoxesAreNoError) {
  EXPECT_THAT(FormatReport(Report(0), {}, Terminal()), HasSubstr("no boxes"));
  EXPECT_EQ(nlohmann::json::parse(FormatJson(Report(0)))["boxes"], nlohmann::json::array());
}

TEST(BoxReportTest, JsonHasEveryBox) {
  const nlohmann::json json = nlohmann::json::parse(FormatJson(Report(23)));
  ASSERT_EQ(json["boxes"].size(), 23u);
  EXPECT_EQ(json["boxes"][22]["class_name"], "car");
  EXPECT_EQ(json["boxes"][22]["velocity_y"], 4.0);
  EXPECT_FALSE(json.contains("classes"));
}

}  // namespace
}  // namespace voxserve::client::box_report_test
