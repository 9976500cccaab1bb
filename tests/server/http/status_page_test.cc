#include "server/http/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <stack>
#include <string>

namespace voxserve::status_page_test {
namespace {

using testing::HasSubstr;
using testing::Not;

ServerStatus Example() {
  ServerStatus status;
  status.version = "1.2.3";
  status.devices = "cpu";
  status.grpc_address = "127.0.0.1:8500";
  status.uptime = absl::Hours(25) + absl::Minutes(3);
  ServerStatus::Model model;
  model.info.name = "minkunet";
  model.info.version = 1;
  model.info.state = ModelState::kReady;
  model.info.voxel_size = {0.05f, 0.05f, 0.1f};
  model.info.num_parameters = 5'441'036;
  model.info.plan_source = "plan_dir";
  model.info.classes = {{.id = 0, .name = "car", .color_rgb = 0x0A0B0C}};
  ModelStatistics& statistics = model.statistics;
  statistics.frames = 12;
  statistics.frames_history = std::vector<int64_t>(60, 0);
  statistics.frames_history.back() = 25;
  statistics.latency_seconds = {.count = 12, .mean = 0.02, .p50 = 0.0123, .p95 = 0.05, .p99 = 12.5};
  statistics.refusal_seconds = {.count = 8, .mean = 0.0004, .p50 = 0.0004, .p95 = 0.0012, .p99 = 0.00134};
  statistics.queue_depth = 3;
  statistics.streams = 16;
  statistics.stage_seconds = {
      {Stage::kVoxelize, {.count = 12, .mean = 0.001, .p50 = 0.0009, .p95 = 0.002, .p99 = 0.003}},
      {Stage::kFeatures, {.count = 12, .mean = 0.004, .p50 = 0.0031, .p95 = 0.0072, .p99 = 0.0081}}};
  statistics.batch_requests = {.count = 5, .mean = 2.4, .p50 = 2, .p95 = 3.2, .p99 = 3.9};
  statistics.batch_points = {.count = 5, .mean = 298'000};
  statistics.batch_voxels = {.count = 5, .mean = 76'500};
  statistics.prediction_error = {.count = 5, .mean = 0.1, .p50 = 0.07, .p95 = 0.31};
  statistics.frame_age_seconds = {.count = 5, .mean = 0.04, .p50 = 0.0411, .p99 = 0.0977};
  statistics.negative_ages = 2;
  statistics.failures = {{"DEADLINE_EXCEEDED", 8}, {"INVALID_ARGUMENT", 1}};
  statistics.dropped = {{.reason = DropReason::kUnmeetable, .total = 8, .last_minute = 5}};
  statistics.plans = {{.version = 1, .device = "cuda:1", .source = "tuned"}};
  status.models.push_back(model);
  status.device_statistics = {{.device = "cpu",
                               .busy_seconds = absl::ToDoubleSeconds(status.uptime) / 4,
                               .memory_bytes = {{"arena", 1'500'000}, {"weights", 2'250'000'000}}}};
  return status;
}

// Expects that every element of the page is closed, in the right order.
void ExpectWellFormed(const std::string& html) {
  std::stack<std::string> open;
  static const std::regex kTag("<(/?)([a-z0-9]+)([^>]*)>");
  std::string body = html;
  for (const char* raw : {"style", "script"}) {
    const size_t begin = body.find(std::string("<") + raw + ">") + std::string(raw).size() + 2;
    body.erase(begin, body.find(std::string("</") + raw + ">") - begin);
  }
  for (std::sregex_iterator tag(body.begin(), body.end(), kTag), end; tag != end; ++tag) {
    const std::string name = (*tag)[2];
    if (name == "meta" || (*tag)[3].str().ends_with("/")) continue;
    if ((*tag)[1].length() == 0) {
      open.push(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << name;
    ASSERT_EQ(open.top(), name);
    open.pop();
  }
  EXPECT_TRUE(open.empty());
}

TEST(StatusPageTest, ShowsWhatAnOperatorAsks) {
  const std::string html = RenderHtml(Example());
  for (const char* text : {"minkunet",
                           "1.2.3",
                           "127.0.0.1:8500",
                           "1 d 1 h",
                           ">ready<",
                           "0.05 &times; 0.05 &times; 0.1 m",
                           "5.44 M",
                           "12.3 ms",
                           "12.50 s",
                           "car",
                           "25.0%",
                           "arena 1.5 MB",
                           "weights 2.25 GB",
                           "#0a0b0c",
                           "plan: plan_dir",
                           "voxelize",
                           "4.00 ms",
                           "<b>2.5</b><span>frames a second",
                           "<b>16</b><span>streams open",
                           "<b>2.4</b><span>requests a batch",
                           "<b>4</b><span>p95 of them",
                           "<b>298.0 k</b><span>points a batch",
                           "<b>76.5 k</b><span>voxels a batch",
                           "<b>1.34 ms</b><span>p99 of refusals",
                           "<b>31%</b><span>p95 prediction error",
                           "<b>97.7 ms</b><span>p99 frame age",
                           "<b>2</b><span>stamped in the future",
                           "<b>9</b><span>not answered",
                           "<b>3</b><span>waiting",
                           "<td>4.00 ms</td><td>3.10 ms</td><td>7.20 ms</td><td>8.10 ms</td>",
                           "<b>unmeetable</b>8 (5)",
                           "<b>DEADLINE_EXCEEDED</b>8",
                           "<b>INVALID_ARGUMENT</b>1",
                           "<b>tuned</b>version 1, cuda:1"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
  ExpectWellFormed(html);
}

TEST(StatusPageTest, SaysWhatAModelAnswersBesideLabels) {
  ServerStatus status = Example();
  EXPECT_THAT(RenderHtml(status), Not(HasSubstr("boxes")));
  ModelVersionInfo& info = status.models[0].info;
  info.has_labels = true;
  info.has_boxes = true;
  info.has_velocities = true;
  status.models[0].statistics.boxes = 1234;
  EXPECT_THAT(RenderHtml(status), HasSubstr("&middot; labels and boxes with velocities"));
  EXPECT_THAT(RenderHtml(status), HasSubstr("boxes found"));
  info.has_labels = info.has_velocities = false;
  EXPECT_THAT(RenderHtml(status), HasSubstr("&middot; boxes &middot; plan"));
  info.tensors = {{.name = "deep"}, {.name = "vector"}};
  EXPECT_THAT(RenderHtml(status), HasSubstr("&middot; boxes &middot; tensors deep, vector &middot; plan"));
  info.has_boxes = false;
  EXPECT_THAT(RenderHtml(status), HasSubstr("&middot; tensors deep, vector &middot; plan"));
  ExpectWellFormed(RenderHtml(status));
}

TEST(StatusPageTest, NeedsNothingFromElsewhere) {
  const std::string html = RenderHtml(Example());
  EXPECT_THAT(html, Not(HasSubstr("http://")));
  EXPECT_THAT(html, Not(HasSubstr("https://")));
  EXPECT_THAT(html, Not(HasSubstr("<link")));
}

TEST(StatusPageTest, EscapesWhatModelsSay) {
  ServerStatus status = Example();
  const std::string attack = "<script>alert('x')</script>\"&";
  ModelVersionInfo& info = status.models[0].info;
  info.name = info.description = info.device = info.plan_source = attack;
  info.state = ModelState::kFailed;
  info.problems = {attack};
  info.classes[0].name = attack;
  ModelStatistics& statistics = status.models[0].statistics;
  statistics.failures[0].first = attack;
  statistics.plans[0].source = statistics.plans[0].device = attack;
  status.device_statistics[0].device = status.device_statistics[0].memory_bytes[0].first = attack;
  status.readiness = absl::UnavailableError(attack);
  const std::string html = RenderHtml(status);
  EXPECT_THAT(html, Not(HasSubstr("alert('x')")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;"));
  EXPECT_THAT(html, HasSubstr(">failed<"));
  ExpectWellFormed(html);
}

TEST(StatusPageTest, AFreshServerHasNoNumbersYet) {
  ServerStatus status;
  status.readiness = absl::UnavailableError("loading models");
  EXPECT_THAT(RenderHtml(status), HasSubstr("The model repository is empty."));
  EXPECT_THAT(RenderHtml(status), HasSubstr("loading models"));
  ServerStatus::Model model;
  model.info.name = "new";
  status.models.push_back(model);
  const std::string html = RenderHtml(status);
  EXPECT_THAT(html, HasSubstr(">loading<"));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr("inf")));
  EXPECT_THAT(html, Not(HasSubstr("a batch</span>"))) << "nothing ran";
  ExpectWellFormed(html);
}

TEST(StatusPageTest, VersionsOfAModelShareItsTraffic) {
  ServerStatus status = Example();
  status.models.push_back(status.models[0]);
  status.models[1].info.version = 2;
  const std::string html = RenderHtml(status);
  EXPECT_EQ(html.find("frames a second</span>"), html.rfind("frames a second</span>"));
  ExpectWellFormed(html);
}

}  // namespace
}  // namespace voxserve::status_page_test
