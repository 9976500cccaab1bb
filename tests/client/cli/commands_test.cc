#include "client/cpp/cli/commands.h"

#include "gmock/gmock.h"

namespace voxserve::client::commands_test {
namespace {

using ::testing::HasSubstr;

TEST(HelpTest, NamesEveryFlagOfEveryCommandWithItsHelp) {
  for (const Command& command : AllCommands()) {
    const std::vector<Flag> flags = command.list_flags();
    const std::string page = FormatHelp("voxserve-client", command.help, flags);
    ASSERT_FALSE(flags.empty());
    for (const Flag& flag : flags) {
      const std::string shown = flag.default_value.empty() ? "" : "  (default " + flag.default_value + ")";
      EXPECT_THAT(
          page, HasSubstr("  --" + flag.name + (flag.value_name.empty() ? "" : " " + flag.value_name) + shown + "\n"));
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
}  // namespace voxserve::client::commands_test
