// voxserve-client is the command line for a voxserve server: it labels scans or finds boxes in them.

#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/cli/command.h"
#include "client/cpp/cli/commands.h"

namespace voxserve::client {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsUtf8Locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = absl::AsciiStrToLower(Environment(name));
    if (!value.empty()) return absl::StrContains(value, "utf-8") || absl::StrContains(value, "utf8");
  }
  return false;
}

Terminal DetectTerminal() {
  const bool is_capable = Environment("TERM") != "dumb";
  const bool out_is_tty = isatty(STDOUT_FILENO) && is_capable;
  Terminal terminal;
  terminal.out_color = out_is_tty && Environment("NO_COLOR").empty();
  // A minimal system sets no locale, but its terminal shows Unicode anyway.
  terminal.out_unicode = out_is_tty || IsUtf8Locale();
  terminal.err_is_tty = isatty(STDERR_FILENO) && is_capable;
  return terminal;
}

std::string Overview() {
  std::string text =
      "voxserve-client: labels LiDAR scans, or finds boxes in them, with a voxserve server\n\n"
      "  voxserve-client COMMAND [FLAGS] [ARGUMENTS]\n\n"
      "Commands:\n";
  for (const Command& command : AllCommands())
    absl::StrAppendFormat(&text, "  %-8s %s\n", command.help.name, command.help.summary);
  return absl::StrCat(text,
                      "  help     explains a command: voxserve-client help infer\n\n"
                      "Try:\n"
                      "  voxserve-client health\n"
                      "  voxserve-client models\n"
                      "  voxserve-client infer --model minkunet scan.bin --picture bev.png --preview\n"
                      "  voxserve-client bench --model minkunet scan.bin --concurrency 8\n\n"
                      "Exit codes: 0 done, 1 something failed (or the server is not ready), 2 wrong usage.\n");
}

int PrintHelp(const std::string& name) {
  for (const Command& command : AllCommands()) {
    if (command.help.name != name) continue;
    std::cout << FormatHelp("voxserve-client", command.help, command.list_flags());
    return kExitOk;
  }
  std::cerr << "voxserve-client: unknown command '" << name << "'; see voxserve-client help" << std::endl;
  return kExitUsage;
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::cerr << Overview();
    return kExitUsage;
  }
  const std::string& name = arguments[0];
  if (name == "help" && arguments.size() > 1) return PrintHelp(arguments[1]);
  if (name == "help" || name == "--help" || name == "-h") {
    std::cout << Overview();
    return kExitOk;
  }
  for (const Command& command : AllCommands()) {
    if (command.help.name != name) continue;
    for (size_t i = 1; i < arguments.size() && arguments[i] != "--"; ++i) {
      if (arguments[i] == "--help" || arguments[i] == "-h") return PrintHelp(name);
    }
    return command.run({arguments.begin() + 1, arguments.end()}, DetectTerminal());
  }
  return PrintHelp(name);
}

}  // namespace
}  // namespace voxserve::client

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is then an error (EFBIG) that names the file
  voxserve::client::SetDefaultToken(voxserve::client::Environment("VOXSERVE_TOKEN"));
  return voxserve::client::Main({argv + 1, argv + argc});
}
