#include "tests/faults/fault_rules.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"

namespace voxserve {
namespace {

constexpr int64_t kMaxAmount = int64_t{1} << 40;

// Returns the setting's name for the amount of a site; "" if the site has none.
std::string_view AmountOf(FaultSite site) {
  switch (site) {
    case FaultSite::kHeap:
      return "bytes";
    case FaultSite::kSlowBatch:
      return "ms";
    case FaultSite::kClock:
      return "seconds";
    default:
      return "";
  }
}

absl::StatusOr<FaultRule> ParseRule(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  const absl::string_view name = absl::StripAsciiWhitespace(parts.first);
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("the fault \"", text, "\" ", why));
  };
  const auto found =
      std::find(kFaultSiteNames.begin(), kFaultSiteNames.end(), std::string_view(name.data(), name.size()));
  if (found == kFaultSiteNames.end()) return wrong("has a site that does not exist");
  FaultRule rule = {.site = static_cast<FaultSite>(found - kFaultSiteNames.begin())};
  const std::string amount(AmountOf(rule.site));
  for (const absl::string_view setting : absl::StrSplit(parts.second, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(setting, absl::MaxSplits('=', 1));
    int64_t value = 0;
    if (!absl::SimpleAtoi(pair.second, &value)) return wrong("has a setting without a whole number");
    const bool may_be_negative = rule.site == FaultSite::kClock && pair.first == amount;
    if (value > kMaxAmount || value < (may_be_negative ? -kMaxAmount : 0)) return wrong("has a number out of range");
    if (pair.first == "after") {
      rule.after = value;
    } else if (pair.first == "every" && value > 0) {
      rule.every = value;
    } else if (pair.first == "times") {
      rule.times = value;
    } else if (!amount.empty() && pair.first == amount) {
      rule.amount = value;
    } else {
      return wrong("has a setting that its site does not know");
    }
  }
  return rule;
}

}  // namespace

absl::StatusOr<std::vector<FaultRule>> ParseFaultRules(std::string_view text) {
  std::vector<FaultRule> rules;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ';', absl::SkipWhitespace())) {
    ASSIGN_OR_RETURN(FaultRule rule, ParseRule(part));
    for (const FaultRule& other : rules) {
      if (other.site == rule.site) {
        return absl::InvalidArgumentError(absl::StrCat("the fault \"", part, "\" has a site that another one has"));
      }
    }
    rules.push_back(rule);
  }
  return rules;
}

}  // namespace voxserve
