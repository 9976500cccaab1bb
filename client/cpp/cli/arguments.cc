#include "client/cpp/cli/arguments.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace voxserve::client {
namespace {

constexpr size_t kHelpWidth = 100;
constexpr size_t kHelpIndent = 6;

std::string Wrap(absl::string_view text, size_t indent) {
  std::string out, line;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!line.empty() && indent + line.size() + 1 + word.size() > kHelpWidth) {
      absl::StrAppend(&out, std::string(indent, ' '), line, "\n");
      line.clear();
    }
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  absl::StrAppend(&out, std::string(indent, ' '), line, "\n");
  return out;
}

}  // namespace

Flag StringFlag(std::string name, std::string value_name, std::string help, std::string* value) {
  return {std::move(name), std::move(value_name), std::move(help), [value](absl::string_view text) {
            *value = std::string(text);
            return text.empty() ? absl::InvalidArgumentError("is empty") : absl::OkStatus();
          }};
}

Flag IntFlag(std::string name, std::string value_name, std::string help, int64_t min, int64_t max, int64_t* value) {
  return {
      std::move(name), std::move(value_name), std::move(help), [=](absl::string_view text) {
        if (absl::SimpleAtoi(text, value) && *value >= min && *value <= max) return absl::OkStatus();
        return absl::InvalidArgumentError(absl::StrCat("is '", text, "', must be a number from ", min, " to ", max));
      }};
}

Flag NumberFlag(std::string name, std::string value_name, std::string help, double min, double max, double* value) {
  return {
      std::move(name), std::move(value_name), std::move(help), [=](absl::string_view text) {
        if (absl::SimpleAtod(text, value) && *value >= min && *value <= max) return absl::OkStatus();
        return absl::InvalidArgumentError(absl::StrCat("is '", text, "', must be a number from ", min, " to ", max));
      }};
}

Flag DurationFlag(std::string name, std::string help, absl::Duration* value, bool may_be_zero) {
  return {std::move(name), "TIME", std::move(help), [=](absl::string_view text) {
            if (absl::ParseDuration(text, value) &&
                (*value > absl::ZeroDuration() || (may_be_zero && *value == absl::ZeroDuration()))) {
              return absl::OkStatus();
            }
            return absl::InvalidArgumentError(absl::StrCat("is '", text, "', must be a time such as 10s or 500ms"));
          }};
}

Flag ChoiceFlag(std::string name, std::vector<std::string> choices, std::string help, std::string* value) {
  std::string value_name = absl::StrJoin(choices, "|");
  return {
      std::move(name), std::move(value_name), std::move(help), [=](absl::string_view text) {
        *value = std::string(text);
        if (std::find(choices.begin(), choices.end(), text) != choices.end()) return absl::OkStatus();
        return absl::InvalidArgumentError(absl::StrCat("is '", text, "', must be ", absl::StrJoin(choices, " or ")));
      }};
}

Flag SwitchFlag(std::string name, std::string help, bool* value) {
  return {std::move(name), "", std::move(help), [value](absl::string_view) {
            *value = true;
            return absl::OkStatus();
          }};
}

absl::Status ParseArguments(const std::vector<std::string>& arguments, const std::vector<Flag>& flags,
                            std::vector<std::string>* positionals) {
  bool flags_ended = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (flags_ended || !absl::StartsWith(argument, "--")) {
      positionals->push_back(argument);
      continue;
    }
    if (argument == "--") {
      flags_ended = true;
      continue;
    }
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    const auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == name; });
    if (flag == flags.end()) return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name));
    std::string value;
    if (flag->value_name.empty()) {
      if (equals != std::string::npos) return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
    } else if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value: --", name, " ", flag->value_name));
    }
    if (const absl::Status status = flag->set(value); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " ", status.message()));
    }
  }
  return absl::OkStatus();
}

std::string FormatHelp(const CommandHelp& help, const std::vector<Flag>& flags) {
  const std::string command = absl::StrCat(help.program, help.name.empty() ? "" : " ", help.name);
  std::string text = absl::StrCat(command, ": ", help.summary, "\n\n  ", command, help.synopsis.empty() ? "" : " ",
                                  help.synopsis, "\n\n");
  for (const absl::string_view paragraph : absl::StrSplit(help.description, '\n')) {
    absl::StrAppend(&text, Wrap(paragraph, 0), "\n");
  }
  absl::StrAppend(&text, "Flags:\n");
  for (const Flag& flag : flags) {
    absl::StrAppend(&text, "  --", flag.name, flag.value_name.empty() ? "" : " ", flag.value_name, "\n",
                    Wrap(flag.help, kHelpIndent));
  }
  absl::StrAppend(&text, "\nExamples:\n", help.examples);
  return text;
}

}  // namespace voxserve::client
