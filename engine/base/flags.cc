#include "engine/base/flags.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "engine/base/numbers.h"

namespace voxserve {
namespace {

constexpr size_t kHelpWidth = 100;
constexpr size_t kHelpIndent = 6;

constexpr std::pair<const char*, int64_t> kUnits[] = {
    {"GiB", int64_t{1} << 30}, {"MiB", int64_t{1} << 20}, {"KiB", int64_t{1} << 10}};

std::string FormatNumber(double value) { return absl::StrFormat("%.15g", value); }

// Returns "WHAT from 1 to 9", or "WHAT of at least 1" if `max` is the largest int64_t. WHAT is the text of `what`.
std::string Range(absl::string_view what, int64_t min, int64_t max, const std::function<std::string(int64_t)>& format) {
  return max == std::numeric_limits<int64_t>::max() ? absl::StrCat(what, " of at least ", format(min))
                                                    : absl::StrCat(what, " from ", format(min), " to ", format(max));
}

template <typename Int>
Flag MakeIntFlag(std::string name, std::string value_name, std::string help, int64_t min, int64_t max, Int* value) {
  return {.name = std::move(name),
          .value_name = std::move(value_name),
          .help = std::move(help),
          .must_be = Range("a number", min, max, [](int64_t number) { return absl::StrCat(number); }),
          .parse = [=](absl::string_view text) { return ParseInteger(text, value); },
          .is_in_range = [=] { return *value >= min && *value <= max; },
          .value = [=] { return absl::StrCat(*value); }};
}

Flag MakeStringFlag(std::string name, std::string value_name, std::string help, bool may_be_empty, std::string* value) {
  return {.name = std::move(name),
          .value_name = std::move(value_name),
          .help = std::move(help),
          .parse =
              [=](absl::string_view text) {
                *value = std::string(text);
                return true;
              },
          .is_in_range = [=] { return may_be_empty || !value->empty(); },
          .value = [=] { return *value; }};
}

bool ParseBytes(absl::string_view text, int64_t* bytes) {
  int64_t unit = 1, count = 0;
  for (const auto& [suffix, size] : kUnits) {
    if (absl::ConsumeSuffix(&text, suffix)) unit = size;
  }
  if (!ParseInteger(text, &count) || count < 0 || count > std::numeric_limits<int64_t>::max() / unit) return false;
  *bytes = count * unit;
  return true;
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

absl::Status UnknownFlag(absl::string_view name, const std::vector<Flag>& flags) {
  constexpr size_t kMostEdits = 3;
  size_t least = kMostEdits + 1;
  std::string hint;
  for (const Flag& flag : flags) {
    const size_t distance = EditDistance(name, flag.name);
    if (distance >= least) continue;
    least = distance;
    hint = absl::StrCat(" (did you mean --", flag.name, "?)");
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown flag --", name, hint));
}

// Returns the text in lines of at most kHelpWidth characters, each after `indent` spaces.
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
  return MakeStringFlag(std::move(name), std::move(value_name), std::move(help), false, value);
}

Flag ListFlag(std::string name, std::string value_name, std::string help, std::string* value) {
  Flag flag = MakeStringFlag(std::move(name), std::move(value_name), std::move(help), false, value);
  flag.joins_values = true;
  return flag;
}

Flag MaybeEmptyFlag(std::string name, std::string value_name, std::string help, std::string* value) {
  return MakeStringFlag(std::move(name), std::move(value_name), std::move(help), true, value);
}

Flag IntFlag(std::string name, std::string value_name, std::string help, int64_t min, int64_t max, int64_t* value) {
  return MakeIntFlag(std::move(name), std::move(value_name), std::move(help), min, max, value);
}

Flag IntFlag(std::string name, std::string value_name, std::string help, int64_t min, int64_t max, int* value) {
  return MakeIntFlag(std::move(name), std::move(value_name), std::move(help), min, max, value);
}

Flag NumberFlag(std::string name, std::string value_name, std::string help, double min, double max, double* value) {
  return {.name = std::move(name),
          .value_name = std::move(value_name),
          .help = std::move(help),
          .must_be = absl::StrCat("a number from ", FormatNumber(min), " to ", FormatNumber(max)),
          .parse = [=](absl::string_view text) { return ParseReal(text, value); },
          .is_in_range = [=] { return *value >= min && *value <= max; },  // so NaN is out of range
          .value = [=] { return FormatNumber(*value); }};
}

Flag BytesFlag(std::string name, std::string help, int64_t min, int64_t max, int64_t* value) {
  return {.name = std::move(name),
          .value_name = "BYTES",
          .help = std::move(help),
          .must_be = Range("a number of bytes, KiB, MiB or GiB such as 64MiB,", min, max, FormatBytes),
          .parse = [=](absl::string_view text) { return ParseBytes(text, value); },
          .is_in_range = [=] { return *value >= min && *value <= max; },
          .value = [=] { return FormatBytes(*value); }};
}

Flag DurationFlag(std::string name, std::string help, absl::Duration* value, absl::Duration min) {
  return {
      .name = std::move(name),
      .value_name = "TIME",
      .help = std::move(help),
      .must_be = min == kAboveZero
                     ? "a time such as 10s or 500ms"
                     : absl::StrCat("a time such as 10s or 500ms, of at least ", absl::FormatDuration(min)),
      .parse = [=](absl::string_view text) { return !absl::StartsWith(text, "+") && absl::ParseDuration(text, value); },
      .is_in_range = [=] { return *value >= min; },
      .value = [=] { return absl::FormatDuration(*value); }};
}

Flag BoolFlag(std::string name, std::string help, bool* value) {
  return {.name = std::move(name),
          .help = std::move(help),
          .must_be = "true or false",
          .parse = [=](absl::string_view text) { return absl::SimpleAtob(text, value); },
          .is_in_range = [] { return true; },
          .value = [=] { return std::string(*value ? "true" : "false"); }};
}

Flag ChoiceFlag(std::string name, const std::vector<std::string>& choices, std::string help, std::string* value) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& choice : choices) pairs.emplace_back(choice, choice);
  return ChoiceFlag<std::string>(std::move(name), pairs, std::move(help), value);
}

std::string JoinChoices(const std::vector<std::string>& choices) {
  const auto last = choices.end() - 1;
  return absl::StrCat(absl::StrJoin(choices.begin(), last, ", "), choices.size() > 1 ? " or " : "", *last);
}

absl::Status FlagError(absl::string_view name, absl::string_view value, absl::string_view must_be) {
  return absl::InvalidArgumentError(absl::StrCat("--", name, " is ",
                                                 value.empty() ? "empty" : absl::StrCat("'", value, "'"),
                                                 must_be.empty() ? "" : ", must be ", must_be));
}

std::string FormatBytes(int64_t bytes) {
  for (const auto& [suffix, unit] : kUnits) {
    if (bytes >= unit && bytes % unit == 0) return absl::StrCat(bytes / unit, suffix);
  }
  return absl::StrCat(bytes);
}

absl::Status ParseFlags(const std::vector<std::string>& words, const std::vector<Flag>& flags,
                        std::vector<std::string>* positionals) {
  bool flags_ended = false;
  std::vector<std::pair<const Flag*, std::string>> given;  // with the last value, in the order of first mention
  for (size_t i = 0; i < words.size(); ++i) {
    absl::string_view word = words[i];
    if (flags_ended ||
        !(absl::ConsumePrefix(&word, "--") || (positionals == nullptr && absl::ConsumePrefix(&word, "-")))) {
      if (positionals == nullptr) return absl::InvalidArgumentError(absl::StrCat("\"", words[i], "\" is not a flag"));
      positionals->push_back(words[i]);
      continue;
    }
    if (word.empty() && positionals != nullptr) {
      flags_ended = true;
      continue;
    }
    const size_t equals = word.find('=');
    const bool has_value = equals != absl::string_view::npos;
    absl::string_view name = word.substr(0, equals);
    if (name == "h" && positionals == nullptr) name = "help";
    const std::string spelled = absl::StrReplaceAll(name, {{"-", "_"}});
    const auto flag = std::find_if(flags.begin(), flags.end(), [&](const Flag& f) { return f.name == spelled; });
    if (flag == flags.end()) return UnknownFlag(name, flags);
    if (flag->ends_parsing) {
      if (has_value) return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      flag->parse("");
      return absl::OkStatus();
    }
    std::string value;
    if (has_value) {
      value = std::string(word.substr(equals + 1));
    } else if (flag->value_name.empty()) {
      value = "true";
    } else if (i + 1 < words.size()) {
      value = words[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value: --", name, " ", flag->value_name));
    }
    const auto known = std::find_if(given.begin(), given.end(), [&](const auto& g) { return g.first == &*flag; });
    if (flag->joins_values && known != given.end()) value = absl::StrCat(known->second, ",", value);
    if (!flag->parse(value)) return FlagError(name, value, flag->must_be);
    if (known == given.end()) {
      given.emplace_back(&*flag, std::move(value));
    } else {
      known->second = std::move(value);
    }
  }
  // The last value counts, so an earlier one may be out of range.
  for (const auto& [flag, value] : given) {
    if (!flag->is_in_range()) return FlagError(flag->name, value, flag->must_be);
  }
  return absl::OkStatus();
}

absl::Status CheckFlags(const std::vector<Flag>& flags) {
  for (const Flag& flag : flags) {
    if (!flag.is_in_range()) return FlagError(flag.name, flag.value(), flag.must_be);
  }
  return absl::OkStatus();
}

std::string FormatHelp(absl::string_view program, const CommandHelp& help, const std::vector<Flag>& flags) {
  const std::string command = absl::StrCat(program, help.name.empty() ? "" : " ", help.name);
  std::string text = absl::StrCat(command, ": ", help.summary, "\n\n  ", command, help.synopsis.empty() ? "" : " ",
                                  help.synopsis, "\n\n");
  for (const absl::string_view paragraph : absl::StrSplit(help.description, '\n')) {
    absl::StrAppend(&text, Wrap(paragraph, 0), "\n");
  }
  const std::string* topic = nullptr;
  for (const Flag& flag : flags) {
    if (topic == nullptr || *topic != flag.topic) {
      absl::StrAppend(&text, topic == nullptr ? "" : "\n", flag.topic.empty() ? "Flags" : "Flags for ", flag.topic,
                      ":\n");
      topic = &flag.topic;
    }
    absl::StrAppend(&text, "  --", flag.name, flag.value_name.empty() ? "" : " ", flag.value_name,
                    flag.default_value.empty() ? "" : absl::StrCat("  (default ", flag.default_value, ")"), "\n",
                    Wrap(flag.help, kHelpIndent));
  }
  absl::StrAppend(&text, "\nExamples:\n", help.examples);
  return text;
}

}  // namespace voxserve
