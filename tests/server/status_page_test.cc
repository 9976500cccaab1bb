#include "server/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <stack>
#include <string>

namespace voxserve {
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
  model.statistics.frames = 12;
  model.statistics.frames_history = std::vector<int64_t>(60, 0);
  model.statistics.frames_history.back() = 25;
  model.statistics.p50_seconds = 0.0123;
  model.statistics.p99_seconds = 12.5;
  model.statistics.queue_depth = 3;
  model.statistics.stage_mean_seconds = {{"voxelize", 0.001}, {"features", 0.004}};
  status.models.push_back(model);
  status.device_statistics = {{.device = "cpu",
                               .busy_seconds = absl::ToDoubleSeconds(status.uptime) / 4,
                               .memory_bytes = {{"arena", 1'500'000}}}};
  return status;
}

// Every element is closed, in order.
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
  for (const char* text :
       {"minkunet", "1.2.3", "127.0.0.1:8500", "1 d 1 h", ">ready<", "0.05 &times; 0.05 &times; 0.1 m", "5.44 M",
        "12.3 ms", "12.50 s", "car", "25.0%", "arena 1.5 MB", "#0a0b0c", "plan: plan_dir", "voxelize", "4.00 ms",
        "<b>2.5</b><span>frames a second"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
  ExpectWellFormed(html);
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
  status.models[0].statistics.stage_mean_seconds[0].first = attack;
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
}  // namespace voxserve
