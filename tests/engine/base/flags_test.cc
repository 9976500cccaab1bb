#include "engine/base/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace voxserve::flags_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

enum class Mood { kCalm, kWild };
enum class Action { kNone, kHelp };

class FlagsTest : public testing::Test {
 protected:
  std::vector<Flag> Flags() {
    return {StringFlag("name", "NAME", "A name.", &name_),
            MaybeEmptyFlag("folder", "FOLDER", "A folder.", &folder_),
            IntFlag("count", "N", "A count.", 1, 9, &count_),
            IntFlag("port", "N", "A port.", -1, 65535, &port_),
            IntFlag("limit", "N", "A limit.", 1, std::numeric_limits<int64_t>::max(), &limit_),
            NumberFlag("rate", "R", "A rate.", 0.5, 1e6, &rate_),
            BytesFlag("memory", "A size.", 1 << 10, int64_t{8} << 30, &memory_),
            BytesFlag("cache", "A size.", 0, std::numeric_limits<int64_t>::max(), &cache_),
            DurationFlag("timeout", "A time.", &timeout_),
            DurationFlag("drain", "A time.", &drain_, absl::Milliseconds(1)),
            BoolFlag("loud", "A boolean.", &loud_),
            ChoiceFlag("color", {"auto", "always", "never"}, "A choice.", &color_),
            ChoiceFlag<Mood>("mood", {{"calm", Mood::kCalm}, {"wild", Mood::kWild}}, "A choice.", &mood_),
            ActionFlag("help", "An action.", Action::kHelp, &action_)};
  }
  absl::Status Parse(const std::vector<std::string>& words) { return ParseFlags(words, Flags(), &positionals_); }
  std::string ErrorOf(const std::vector<std::string>& words) {
    const absl::Status status = Parse(words);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  std::string name_ = "default", folder_ = "x";
  int64_t count_ = 3, limit_ = 0, memory_ = 1 << 20, cache_ = 0;
  int port_ = -1;
  double rate_ = 1;
  absl::Duration timeout_ = absl::Seconds(1), drain_ = absl::Seconds(30);
  bool loud_ = false;
  std::string color_ = "auto";
  Mood mood_ = Mood::kCalm;
  Action action_ = Action::kNone;
  std::vector<std::string> positionals_;
};

TEST_F(FlagsTest, TakesFlagsInBothFormsAnywhere) {
  ASSERT_TRUE(Parse({"a", "--name", "x", "--count=7", "b", "--loud", "-c", "--timeout=250ms", "--", "--c"}).ok());
  EXPECT_EQ(name_, "x");
  EXPECT_EQ(count_, 7);
  EXPECT_TRUE(loud_);
  EXPECT_EQ(timeout_, absl::Milliseconds(250));
  EXPECT_THAT(positionals_, ElementsAre("a", "b", "-c", "--c"));
}

TEST_F(FlagsTest, DashesInNamesAreUnderscores) {
  int64_t bytes = 0;
  const std::vector<Flag> flags = {IntFlag("max_message_bytes", "N", "A count.", 0, 9'000, &bytes)};
  for (const char* const name : {"--max_message_bytes", "--max-message-bytes", "--max-message_bytes"}) {
    bytes = 0;
    EXPECT_TRUE(ParseFlags({absl::StrCat(name, "=8192")}, flags, nullptr).ok());
    EXPECT_EQ(bytes, 8192) << name;
    EXPECT_EQ(ParseFlags({name, "-1"}, flags, nullptr).message(),
              "--max_message_bytes is '-1', must be a number from 0 to 9000")
        << "the documented spelling";
  }
  EXPECT_FALSE(ParseFlags({"--max-message=1"}, flags, nullptr).ok());
}

TEST_F(FlagsTest, LeavesDefaultsAlone) {
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(name_, "default");
  EXPECT_EQ(count_, 3);
  EXPECT_FALSE(loud_);
}

TEST_F(FlagsTest, ReadsEveryType) {
  ASSERT_TRUE(Parse({"--folder=", "--port", "-1", "--limit=9223372036854775807", "--rate=1e6", "--memory", "64MiB",
                     "--cache=3KiB", "--drain=inf", "--loud=no", "--color=NEVER", "--mood", "wild"})
                  .ok());
  EXPECT_EQ(folder_, "");
  EXPECT_EQ(port_, -1);
  EXPECT_EQ(limit_, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(rate_, 1e6);
  EXPECT_EQ(memory_, 64 << 20);
  EXPECT_EQ(cache_, 3 << 10);
  EXPECT_EQ(drain_, absl::InfiniteDuration());
  EXPECT_FALSE(loud_);
  EXPECT_EQ(color_, "never");
  EXPECT_EQ(mood_, Mood::kWild);
  ASSERT_TRUE(Parse({"--cache=1048577", "--loud=true"}).ok());
  EXPECT_EQ(cache_, 1048577);
  EXPECT_TRUE(loud_);
}

TEST_F(FlagsTest, ABooleanTakesNoValueFromTheNextWord) {
  ASSERT_TRUE(Parse({"--loud", "false"}).ok());
  EXPECT_TRUE(loud_);
  EXPECT_THAT(positionals_, ElementsAre("false"));
}

TEST_F(FlagsTest, QuotesWhatIsWrong) {
  for (const auto& [words, error] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--name"}, "--name needs a value: --name NAME"},
           {{"--name="}, "--name is empty"},
           {{"--count", "ten"}, "--count is 'ten', must be a number from 1 to 9"},
           {{"--count", "10"}, "--count is '10', must be a number from 1 to 9"},
           {{"--count="}, "--count is empty, must be a number from 1 to 9"},
           {{"--count=+5"}, "--count is '+5', must be a number from 1 to 9"},
           {{"--count= 5"}, "--count is ' 5', must be a number from 1 to 9"},
           {{"--rate=+5"}, "--rate is '+5', must be a number from 0.5 to 1000000"},
           {{"--rate=5 "}, "--rate is '5 ', must be a number from 0.5 to 1000000"},
           {{"--timeout=+5s"}, "--timeout is '+5s', must be a time such as 10s or 500ms"},
           {{"--memory=+5KiB"},
            "--memory is '+5KiB', must be a number of bytes, KiB, MiB or GiB such as 64MiB, from 1KiB to 8GiB"},
           {{"--port=2147483648"}, "--port is '2147483648', must be a number from -1 to 65535"},
           {{"--limit=0"}, "--limit is '0', must be a number of at least 1"},
           {{"--rate=nan"}, "--rate is 'nan', must be a number from 0.5 to 1000000"},
           {{"--rate=0.4"}, "--rate is '0.4', must be a number from 0.5 to 1000000"},
           {{"--rate=1000001"}, "--rate is '1000001', must be a number from 0.5 to 1000000"},
           {{"--memory=5MB"},
            "--memory is '5MB', must be a number of bytes, KiB, MiB or GiB such as 64MiB, from 1KiB to 8GiB"},
           {{"--memory=9GiB"},
            "--memory is '9GiB', must be a number of bytes, KiB, MiB or GiB such as 64MiB, from 1KiB to 8GiB"},
           {{"--cache=9999999999GiB"},
            "--cache is '9999999999GiB', must be a number of bytes, KiB, MiB or GiB such as 64MiB, of at least 0"},
           {{"--timeout", "10"}, "--timeout is '10', must be a time such as 10s or 500ms"},
           {{"--timeout", "-1s"}, "--timeout is '-1s', must be a time such as 10s or 500ms"},
           {{"--timeout=0s"}, "--timeout is '0s', must be a time such as 10s or 500ms"},
           {{"--drain=0s"}, "--drain is '0s', must be a time such as 10s or 500ms, of at least 1ms"},
           {{"--loud=perhaps"}, "--loud is 'perhaps', must be true or false"},
           {{"--color=red"}, "--color is 'red', must be auto, always or never"},
           {{"--mood=sad"}, "--mood is 'sad', must be calm or wild"},
           {{"--help=me"}, "--help takes no value"}}) {
    EXPECT_EQ(ErrorOf(words), error);
  }
}

TEST_F(FlagsTest, AnUnknownFlagGetsTheMostSimilar) {
  EXPECT_EQ(ErrorOf({"--prot=1"}), "unknown flag --prot (did you mean --port?)");
  EXPECT_EQ(ErrorOf({"--completely_different"}), "unknown flag --completely_different");
  EXPECT_THAT(ErrorOf({"--=1"}), HasSubstr("unknown flag --"));
}

TEST_F(FlagsTest, AnActionEndsTheParsing) {
  ASSERT_TRUE(Parse({"--count=2", "--help", "--count=0"}).ok());
  EXPECT_EQ(action_, Action::kHelp);
  EXPECT_EQ(count_, 2);
  EXPECT_THAT(positionals_, IsEmpty());
}

TEST_F(FlagsTest, WithoutPositionalsOtherWordsAreErrors) {
  EXPECT_TRUE(ParseFlags({"-count=2"}, Flags(), nullptr).ok());
  EXPECT_EQ(count_, 2);
  for (const char* word : {"scan.bin", "--", "-", ""}) {
    EXPECT_FALSE(ParseFlags({word}, Flags(), nullptr).ok()) << word;
  }
  EXPECT_EQ(ParseFlags({"scan.bin"}, Flags(), nullptr).message(), "\"scan.bin\" is not a flag");
}

TEST_F(FlagsTest, AListMayBeGivenInParts) {
  std::string list;
  std::vector<std::string> positionals;
  ASSERT_TRUE(ParseFlags({"--list", "a,b", "--list=c"}, {ListFlag("list", "NAME,...", "", &list)}, &positionals).ok());
  EXPECT_EQ(list, "a,b,c");
}

TEST_F(FlagsTest, TheLastValueCounts) {
  ASSERT_TRUE(Parse({"--count=99999", "--count=2"}).ok()) << "only the last one must be in range";
  EXPECT_EQ(count_, 2);
  EXPECT_THAT(ErrorOf({"--count=2", "--count=99999"}), HasSubstr("--count is '99999'"));
  EXPECT_THAT(ErrorOf({"--count=many", "--count=2"}), HasSubstr("--count is 'many'"));
}

TEST_F(FlagsTest, AProgramWithoutPositionalsTakesH) {
  for (const char* word : {"-h", "--h", "-help", "--help"}) {
    action_ = {};
    EXPECT_TRUE(ParseFlags({word}, Flags(), nullptr).ok()) << word;
    EXPECT_EQ(action_, Action::kHelp) << word;
  }
  EXPECT_TRUE(ParseFlags({"--name", "-h"}, Flags(), nullptr).ok());
  EXPECT_EQ(name_, "-h") << "a value, no flag";
}

TEST_F(FlagsTest, ChecksVariables) {
  limit_ = 1;
  EXPECT_TRUE(CheckFlags(Flags()).ok());
  rate_ = std::nan("");
  EXPECT_EQ(CheckFlags(Flags()).message(), "--rate is 'nan', must be a number from 0.5 to 1000000");
  rate_ = 1;
  drain_ = -absl::Seconds(1);
  EXPECT_THAT(std::string(CheckFlags(Flags()).message()), HasSubstr("--drain is '-1s'"));
}

// Every flag reads the text that it writes, and shows it as its default.
TEST_F(FlagsTest, DefaultsAreTheVariablesValues) {
  std::vector<std::string> defaults;
  for (const Flag& flag : Flags()) {
    defaults.push_back(flag.default_value);
    EXPECT_TRUE(flag.default_value.empty() || flag.parse(flag.default_value)) << flag.name;
  }
  // A limit of 0 is out of the flag's range: it is not set.
  EXPECT_THAT(defaults,
              ElementsAre("default", "x", "3", "-1", "", "1", "1MiB", "0", "1s", "30s", "false", "auto", "calm", ""));
}

TEST(FormatBytesTest, UsesTheLargestUnitThatDivides) {
  EXPECT_EQ(FormatBytes(0), "0");
  EXPECT_EQ(FormatBytes(-5), "-5");
  EXPECT_EQ(FormatBytes(1023), "1023");
  EXPECT_EQ(FormatBytes(3 << 10), "3KiB");
  EXPECT_EQ(FormatBytes(64 << 20), "64MiB");
  EXPECT_EQ(FormatBytes((int64_t{2} << 30) + 1024), "2097153KiB");
  EXPECT_EQ(FormatBytes(int64_t{2} << 30), "2GiB");
}

TEST(FormatHelpTest, ShowsTheFlagsByTopic) {
  int64_t count = 3;
  bool loud = true;
  std::vector<Flag> flags = {IntFlag("count", "N", "A count.", 1, 9, &count), BoolFlag("loud", "A boolean.", &loud)};
  const CommandHelp help = {.name = "run",
                            .synopsis = "[FLAGS] FILE",
                            .summary = "runs",
                            .description = "Runs a file.\nThen it ends.",
                            .examples = "  prog run x\n"};
  EXPECT_EQ(FormatHelp("prog", help, flags),
            "prog run: runs\n\n  prog run [FLAGS] FILE\n\nRuns a file.\n\nThen it ends.\n\n"
            "Flags:\n  --count N  (default 3)\n      A count.\n  --loud  (default true)\n      A boolean.\n"
            "\nExamples:\n  prog run x\n");
  flags[0].topic = "numbers";
  flags[1].topic = "noise";
  const std::string page = FormatHelp("prog", help, flags);
  EXPECT_THAT(page, HasSubstr("\n\nFlags for numbers:\n  --count"));
  EXPECT_THAT(page, HasSubstr("\n\nFlags for noise:\n  --loud"));
  EXPECT_THAT(page, Not(HasSubstr("Flags:")));
}

}  // namespace
}  // namespace voxserve::flags_test
