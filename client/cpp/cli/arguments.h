#pragma once

// These functions parse command lines and format their help. A command declares each flag once, for both purposes.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace voxserve::client {

struct Flag {
  std::string name;                                    // without the dashes
  std::string value_name;                              // "FILE", "N"; "" for a switch, which takes no value
  std::string help;                                    // one sentence or more; names the default
  std::function<absl::Status(absl::string_view)> set;  // called with "" for a switch
};

// Return flags that write to *value, which holds the default and must outlive the parsing. Their `set` returns
// INVALID_ARGUMENT for a value of the wrong form or out of its range.
Flag StringFlag(std::string name, std::string value_name, std::string help, std::string* value);
Flag IntFlag(std::string name, std::string value_name, std::string help, int64_t min, int64_t max, int64_t* value);
Flag NumberFlag(std::string name, std::string value_name, std::string help, double min, double max, double* value);
// Returns a flag for a time such as "10s" or "500ms". The time must be positive, or not negative if may_be_zero.
Flag DurationFlag(std::string name, std::string help, absl::Duration* value, bool may_be_zero = false);
Flag ChoiceFlag(std::string name, std::vector<std::string> choices, std::string help, std::string* value);
Flag SwitchFlag(std::string name, std::string help, bool* value);

struct CommandHelp {
  std::string name;         // "infer"; "" for a program without commands
  std::string synopsis;     // what follows the name: "--model NAME SCAN..."
  std::string summary;      // a few words
  std::string description;  // paragraphs
  std::string examples;     // example command lines, each explained
  std::string program = "voxserve-client";
};

// Parses "--name value" and "--name=value", and appends the other arguments to *positionals in order; "--" ends the
// flags. Returns INVALID_ARGUMENT, which quotes the wrong argument.
absl::Status ParseArguments(const std::vector<std::string>& arguments, const std::vector<Flag>& flags,
                            std::vector<std::string>* positionals);

// Returns the text that `help COMMAND`, or a program's --help, prints.
std::string FormatHelp(const CommandHelp& help, const std::vector<Flag>& flags);

}  // namespace voxserve::client
