#include "client/cpp/cli/arguments.h"

#include "client/cpp/cli/command.h"
#include "client/cpp/cli/commands.h"
#include "gmock/gmock.h"

namespace voxserve::client::arguments_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ArgumentsTest : public testing::Test {
 protected:
  absl::Status Parse(const std::vector<std::string>& arguments) {
    return ParseArguments(
        arguments,
        {StringFlag("name", "NAME", "A name.", &name_), IntFlag("count", "N", "A count.", 1, 9, &count_),
         DurationFlag("timeout", "A time.", &timeout_), SwitchFlag("loud", "A switch.", &loud_)},
        &positionals_);
  }

  std::string name_ = "default";
  int64_t count_ = 3;
  absl::Duration timeout_ = absl::Seconds(1);
  bool loud_ = false;
  std::vector<std::string> positionals_;
};

TEST_F(ArgumentsTest, TakesFlagsInBothFormsAnywhere) {
  ASSERT_TRUE(Parse({"a", "--name", "x", "--count=7", "b", "--loud", "--timeout=250ms", "--", "--c"}).ok());
  EXPECT_EQ(name_, "x");
  EXPECT_EQ(count_, 7);
  EXPECT_TRUE(loud_);
  EXPECT_EQ(timeout_, absl::Milliseconds(250));
  EXPECT_THAT(positionals_, ElementsAre("a", "b", "--c"));
}

TEST_F(ArgumentsTest, LeavesDefaultsAlone) {
  ASSERT_TRUE(Parse({}).ok());
  EXPECT_EQ(name_, "default");
  EXPECT_EQ(count_, 3);
  EXPECT_FALSE(loud_);
}

TEST_F(ArgumentsTest, QuotesWhatIsWrong) {
  for (const auto& [arguments, complaint] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--nme", "x"}, "unknown flag --nme"},
           {{"--name"}, "--name needs a value: --name NAME"},
           {{"--name="}, "--name is empty"},
           {{"--count", "ten"}, "'ten', must be a number from 1 to 9"},
           {{"--count", "10"}, "'10'"},
           {{"--timeout", "10"}, "'10', must be a time"},
           {{"--timeout", "-1s"}, "'-1s'"},
           {{"--loud=yes"}, "takes no value"}}) {
    const absl::Status status = Parse(arguments);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(complaint));
  }
}

TEST(HelpTest, NamesEveryFlagOfEveryCommandWithItsHelp) {
  for (const Command& command : AllCommands()) {
    const std::vector<Flag> flags = command.list_flags();
    const std::string page = FormatHelp(command.help, flags);
    ASSERT_FALSE(flags.empty());
    for (const Flag& flag : flags) {
      EXPECT_THAT(page, HasSubstr("  --" + flag.name + (flag.value_name.empty() ? "" : " " + flag.value_name) + "\n"));
      EXPECT_THAT(page, HasSubstr(flag.help.substr(0, flag.help.find(' ', 10))));
      EXPECT_EQ(flag.help.back(), '.') << flag.name;
    }
    EXPECT_THAT(page, HasSubstr("voxserve-client " + command.help.name));
    EXPECT_THAT(page, HasSubstr("Examples:\n  voxserve-client " + command.help.name));
    for (size_t begin = 0; begin < page.size();) {
      const size_t end = std::min(page.find('\n', begin), page.size());
      EXPECT_LE(end - begin, 100u) << page.substr(begin, end - begin);
      begin = end + 1;
    }
  }
}

}  // namespace
}  // namespace voxserve::client::arguments_test
