#pragma once

// The table of a program's flags, which all programs of this tree share. A row (Flag) has all that is known about a
// flag: its name, variable, default, range and help. The functions below parse, check and explain rows.
//
// - Syntax: "--name value" or "--name=value". A boolean flag takes no value from the next word: "--name" sets true, and
//   "--name=false" sets false.
// - Default: the value that the variable has when the row is made. A value outside of the range says that the flag is
//   not set; the help then tells what happens.
// - Ownership: a row reads and writes a variable of its maker, which must outlive it.
// - Errors: INVALID_ARGUMENT with one line: "--port is '65536', must be a number from 0 to 65535".
// - Threads: not thread-safe. main parses before any thread starts.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace voxserve {

struct Flag {
  std::string name;                                   // without the dashes
  std::string value_name;                             // "FILE", "N"; "" for a flag that needs no value
  std::string help;                                   // sentences, without the default
  std::string must_be;                                // the allowed values: "a number from 0 to 65535"; "" for a text
  std::function<bool(absl::string_view text)> parse;  // writes the variable; returns false for a text of another form
  std::function<bool()> is_in_range;                  // returns whether the variable's value is allowed
  std::function<std::string()> value;                 // returns the variable's value as `parse` reads it
  bool ends_parsing = false;                          // the flag takes no value, and the words after it are not read
  bool joins_values = false;  // the values of a flag that is given several times are joined by commas
  std::string default_value = is_in_range() ? value() : "";
  std::string topic = "";  // heading of the help page; rows of one topic stand together
};

// Return the row of a variable. Its range includes min and max.
Flag StringFlag(std::string name, std::string value_name, std::string help, std::string* value);  // not empty
// For a list that commas separate. The flag may be given several times; its lists are then joined.
Flag ListFlag(std::string name, std::string value_name, std::string help, std::string* value);
Flag MaybeEmptyFlag(std::string name, std::string value_name, std::string help, std::string* value);
Flag IntFlag(std::string name, std::string value_name, std::string help, int64_t min, int64_t max, int64_t* value);
Flag IntFlag(std::string name, std::string value_name, std::string help, int64_t min, int64_t max, int* value);
Flag NumberFlag(std::string name, std::string value_name, std::string help, double min, double max, double* value);
// For a size: 67108864, 64KiB, 64MiB or 1GiB.
Flag BytesFlag(std::string name, std::string help, int64_t min, int64_t max, int64_t* value);
// For a time: 500ms, 30s, 2m or inf.
inline constexpr absl::Duration kAboveZero = absl::Nanoseconds(1);
Flag DurationFlag(std::string name, std::string help, absl::Duration* value, absl::Duration min = kAboveZero);
Flag BoolFlag(std::string name, std::string help, bool* value);
Flag ChoiceFlag(std::string name, const std::vector<std::string>& choices, std::string help, std::string* value);

// Returns "a, b or c".
std::string JoinChoices(const std::vector<std::string>& choices);

// Returns the row of a variable with few values, each of which has a name. The case of the name does not matter.
template <typename T>
Flag ChoiceFlag(std::string name, const std::vector<std::pair<std::string, T>>& choices, std::string help, T* value) {
  std::vector<std::string> names;
  for (const auto& choice : choices) names.push_back(choice.first);
  return {.name = std::move(name),
          .value_name = absl::StrJoin(names, "|"),
          .help = std::move(help),
          .must_be = JoinChoices(names),
          .parse =
              [=](absl::string_view text) {
                for (const auto& [choice, meaning] : choices) {
                  if (!absl::EqualsIgnoreCase(text, choice)) continue;
                  *value = meaning;
                  return true;
                }
                return false;
              },
          .is_in_range = [] { return true; },
          .value =
              [=] {
                for (const auto& [choice, meaning] : choices) {
                  if (*value == meaning) return choice;
                }
                return std::string();
              }};
}

// Returns the row of a flag such as --help: it sets *value to `action`, and the words after it are not read.
template <typename T>
Flag ActionFlag(std::string name, std::string help, T action, T* value) {
  return {.name = std::move(name),
          .help = std::move(help),
          .parse =
              [=](absl::string_view) {
                *value = action;
                return true;
              },
          .is_in_range = [] { return true; },
          .value = [] { return std::string(); },
          .ends_parsing = true};
}

// Returns the error for a value that a flag must not have. must_be: as in Flag.
absl::Status FlagError(absl::string_view name, absl::string_view value, absl::string_view must_be);
// Returns the size as BytesFlag reads it, in the largest unit that divides it.
std::string FormatBytes(int64_t bytes);

// Sets the variables of the flags among `words`, and appends the other words to *positionals in order. "--" ends the
// flags. If positionals is null, other words are errors, a flag may begin with one dash, and "h" means "help". The last
// value of a flag that joins none counts, and only that one must be in range. An error for an unknown flag names the
// most similar flag.
absl::Status ParseFlags(const std::vector<std::string>& words, const std::vector<Flag>& flags,
                        std::vector<std::string>* positionals);

// Returns an error if a variable is out of its flag's range.
absl::Status CheckFlags(const std::vector<Flag>& flags);

// CommandHelp is the text of a help page around its list of flags.
struct CommandHelp {
  std::string name;         // "infer"; "" for a program without commands
  std::string synopsis;     // what follows the name: "--model NAME SCAN..."
  std::string summary;      // a few words
  std::string description;  // paragraphs
  std::string examples;     // example command lines, each explained
};

// Returns the text that a program's --help prints. No line has more than 100 characters, if those of the examples have
// no more.
std::string FormatHelp(absl::string_view program, const CommandHelp& help, const std::vector<Flag>& flags);

}  // namespace voxserve
