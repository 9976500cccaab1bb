// Tests log lines in JSON (engine/base/logging.h): each line is parsed by the library nlohmann JSON.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/logging.h"

namespace voxserve::json_log_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::EndsWith;

class JsonLogTest : public testing::Test {
 protected:
  void SetUp() override { SetLogFormat(LogFormat::kJson); }
  void TearDown() override { SetLogFormat(LogFormat::kText); }
};

// Also checks that the line is one line of valid UTF-8, which json::parse demands.
json Parsed(const std::string& line) {
  EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
  json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(parsed.is_object()) << line;
  return parsed;
}

TEST_F(JsonLogTest, HasTimeLevelAndMessageFirst) {
  const absl::Time before = absl::Now();
  const std::string line = LogLine(LogLevel::kWarning, "no model", {{"name", "net"}});
  const json parsed = Parsed(line);
  EXPECT_EQ(parsed["level"], "WARNING");
  EXPECT_EQ(parsed["message"], "no model");
  EXPECT_EQ(parsed["name"], "net");
  const std::string text = parsed["time"];
  EXPECT_THAT(text, testing::MatchesRegex("....-..-..T..:..:..\\....Z"));
  absl::Time time;
  std::string error;
  ASSERT_TRUE(absl::ParseTime(absl::RFC3339_full, text, &time, &error)) << error;
  EXPECT_GE(time, before - absl::Milliseconds(1));
  EXPECT_LE(time, absl::Now());
  std::vector<std::string> names;
  const auto ordered = nlohmann::ordered_json::parse(line);
  for (const auto& [name, value] : ordered.items()) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("time", "level", "message", "name"));
}

TEST_F(JsonLogTest, KeepsTypes) {
  const json parsed = Parsed(LogLine(LogLevel::kInfo, "x",
                                     {{"int", -3},
                                      {"int64", std::numeric_limits<int64_t>::min()},
                                      {"uint64", std::numeric_limits<uint64_t>::max()},
                                      {"size", sizeof(int)},
                                      {"double", 0.1},
                                      {"float", 2.5F},
                                      {"whole", 84.0},
                                      {"nan", std::numeric_limits<double>::quiet_NaN()},
                                      {"inf", -std::numeric_limits<double>::infinity()},
                                      {"yes", true},
                                      {"no", false},
                                      {"digits", "12"},
                                      {"string", std::string("s")},
                                      {"view", absl::string_view("v")}}));
  EXPECT_EQ(parsed["int"], -3);
  EXPECT_EQ(parsed["int64"].get<int64_t>(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(parsed["uint64"].get<uint64_t>(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parsed["size"], 4);
  EXPECT_EQ(parsed["double"].get<double>(), 0.1);
  EXPECT_EQ(parsed["float"], 2.5);
  EXPECT_TRUE(parsed["whole"].is_number());
  EXPECT_TRUE(parsed["nan"].is_null());
  EXPECT_TRUE(parsed["inf"].is_null());
  EXPECT_EQ(parsed["yes"], true);
  EXPECT_EQ(parsed["no"], false);
  EXPECT_EQ(parsed["digits"], "12") << "a text stays one";
  EXPECT_EQ(parsed["string"], "s");
  EXPECT_EQ(parsed["view"], "v");
}

TEST_F(JsonLogTest, EveryByteComesThroughOrIsReplaced) {
  std::string ascii;
  for (int byte = 0; byte < 0x80; ++byte) ascii += static_cast<char>(byte);
  EXPECT_EQ(Parsed(LogLine(LogLevel::kInfo, ascii, {{"sent", ascii}}))["sent"], ascii);
  EXPECT_EQ(Parsed(LogLine(LogLevel::kInfo, ascii, {}))["message"], ascii);
  EXPECT_EQ(Parsed(LogLine(LogLevel::kInfo, "x", {{"sent", "stra\u00dfe \U0001F697"}}))["sent"],
            "stra\u00dfe \U0001F697");
  const std::string kReplaced = "\uFFFD";
  EXPECT_EQ(Parsed(LogLine(LogLevel::kInfo, "\xff!", {}))["message"], kReplaced + "!");
  EXPECT_EQ(Parsed(LogLine(LogLevel::kInfo, "x", {{"half", "a\xc3"}}))["half"], "a" + kReplaced);
  for (int byte = 0x80; byte < 0x100; ++byte) {
    const std::string text = Parsed(LogLine(LogLevel::kInfo, "x", {{"byte", std::string(1, char(byte))}}))["byte"];
    EXPECT_EQ(text, kReplaced) << byte;
  }
}

TEST_F(JsonLogTest, NamesThatClashAreNumbered) {
  const json parsed = Parsed(LogLine(LogLevel::kInfo, "what happened",
                                     {{"message", "second"}, {"message", "third"}, {"time", 5}, {"level", 7}}));
  EXPECT_EQ(parsed["message"], "what happened");
  EXPECT_EQ(parsed["message_2"], "second");
  EXPECT_EQ(parsed["message_3"], "third");
  EXPECT_EQ(parsed["time_2"], 5);
  EXPECT_EQ(parsed["level"], "INFO");
  EXPECT_EQ(parsed["level_2"], 7);
}

TEST_F(JsonLogTest, ALongLineLosesTextAndStaysJson) {
  for (const std::string& one : {std::string("a"), std::string("\x01"), std::string("\xff"), std::string("\u00e9")}) {
    std::string sent;
    while (sent.size() < 200'000) sent += one;
    const std::string line = LogLine(LogLevel::kInfo, "x", {{"sent", sent}, {"again", sent}, {"model", "net"}});
    EXPECT_LE(line.size(), kMaxLogLineBytes);
    const json parsed = Parsed(line);
    EXPECT_EQ(parsed["model"], "net") << "what is short stays";
    EXPECT_THAT(parsed["sent"].get<std::string>(), EndsWith(" ...[shortened]"));
    EXPECT_EQ(parsed["again"], parsed["sent"]);
    EXPECT_EQ(parsed["sent"].get<std::string>().find("\uFFFD") != std::string::npos, one == "\xff")
        << "no character is cut in two";
  }
}

TEST_F(JsonLogTest, AFieldMayBeLeftOut) {
  const json parsed = Parsed(
      LogLine(LogLevel::kInfo, "x", {LogField::IfAny("trace_id", ""), LogField::IfAny("span_id", "1"), {"empty", ""}}));
  EXPECT_FALSE(parsed.contains("trace_id"));
  EXPECT_EQ(parsed["span_id"], "1");
  EXPECT_EQ(parsed["empty"], "");
}

TEST(TextLogTest, HasTheSameFields) {
  EXPECT_THAT(LogLine(LogLevel::kInfo, "x",
                      {LogField::IfAny("trace_id", ""),
                       LogField::IfAny("span_id", "1"),
                       {"yes", true},
                       {"half", 0.5},
                       {"whole", 84.0},
                       {"number", int64_t{-1}}}),
              EndsWith("Z INFO x span_id=1 yes=true half=0.5 whole=84 number=-1\n"));
}

}  // namespace
}  // namespace voxserve::json_log_test
